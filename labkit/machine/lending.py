"""A machine for a while on the GPUs of the one in use, which are given back as they were."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from .machine import Machine
from .state.gpu import TheMachine


@contextmanager
def lent(owner: TheMachine, gpus: int, memory: str | int) -> Iterator[Machine]:
    """Inside, torch sees a machine with the GPUs of ``owner``, the machine in use, and as many more as make ``gpus``.

    Each has ``memory``, replicas run in device order, and random states are the new machine's own. Afterwards
    ``owner`` is in use again.
    """
    machine = Machine(max(gpus, len(owner.gpus)), memory, owner.backing)
    with ExitStack() as back:
        for gpu, new in zip(owner.gpus, machine.gpus, strict=False):
            back.callback(gpu.lend(machine, new.capacity))
        machine.gpus = (*owner.gpus, *machine.gpus[len(owner.gpus) :])
        with machine.open():
            yield machine
