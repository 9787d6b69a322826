"""A machine for a check-up, which leaves the machine in use as it was."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TypeVar

import torch

from ..machine import machine_in_use, simulate
from ..machine.machine import lent

Copy = TypeVar("Copy")

# Of each GPU: more than any model needs, so that nothing fails for want of memory.
_PLENTY = "16 TiB"


@contextmanager
def undisturbed(gpus: int, copied: Callable[[], Copy]) -> Iterator[Copy]:
    """Yield the copies that ``copied`` makes; inside, torch sees at least ``gpus`` GPUs, with memory for all.

    Tensors on the GPUs of the machine in use stay valid, since the model or its loss may hold some: those GPUs are
    lent to the machine of the check-up, and given back with their own size, peak and statistics. The random states
    of Python, of numpy, of torch and of the GPUs are given back too. Gradients are on.
    """
    drawn, state = random.getstate(), torch.random.get_rng_state()
    owner = machine_in_use()
    with ExitStack() as stack:
        stack.callback(random.setstate, drawn)
        if numpy := sys.modules.get("numpy"):
            stack.callback(numpy.random.set_state, numpy.random.get_state())
        stack.callback(torch.random.set_rng_state, state)
        if owner is not None:
            stack.enter_context(lent(owner, gpus, _PLENTY))
        subject = copied()  # on no GPU of the user's own, and before a machine hides the real ones
        if owner is None:
            stack.enter_context(simulate(gpus, memory=_PLENTY))
        stack.enter_context(torch.enable_grad())
        yield subject
