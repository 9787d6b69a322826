"""A process that was forked after a GPU was used has lost the GPUs: that is CUDA's own rule, and its own error.

It counts as used once one was chosen or something was put on one; before that a fork is harmless.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from typing import Any, NoReturn

import torch

from ....base.patches import Patch
from ....base.tree import tensors_in
from ... import hooks
from ...handlers import HANDLERS
from ...ops.mode import MachineMode
from ...state.cuda_errors import cuda_error
from ...state.gpu import TheMachine
from ...state.in_use import machine_in_use
from ...state.placement import gpu_of

_BAD_FORK = (
    "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the "
    "'spawn' start method"
)


@hooks.patches.add
def patches(machine: TheMachine) -> Iterator[Patch]:
    """torch.cuda knows what a fork does to it."""
    yield Patch(torch.cuda, "_is_in_bad_fork", lambda: machine.gpu is _refuse)


@hooks.opened.add
def _watch_forks(_: TheMachine) -> None:
    """From now on a forked child of this process cannot use GPUs that were used before the fork."""
    _watch_them()


@functools.cache
def _watch_them() -> None:
    def in_child() -> None:
        machine = machine_in_use()
        if machine is not None and machine.used():
            # Instead of asking at each use whether this is a child.
            machine.gpu = _refuse  # type: ignore[method-assign]
            machine.mode.answer_by(_answer_lost)

    os.register_at_fork(after_in_child=in_child)


def _answer_lost(mode: MachineMode, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    """In such a child, what was on a GPU can be asked for its shape and its device, and no more."""
    asks = HANDLERS.get(func, mode) is None or getattr(func, "__name__", "") == "__get__"
    if not asks and any(map(gpu_of, tensors_in(*args, *(kwargs or {}).values()))):
        # A kernel on a tensor from before the fork meets it; torch.cuda asks first and says _BAD_FORK.
        raise cuda_error(3, "InitializationError", "initialization error")
    return MachineMode.__torch_function__(mode, func, types, args, kwargs)


def _refuse(index: int | None) -> NoReturn:
    raise RuntimeError(_BAD_FORK)
