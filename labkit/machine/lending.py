"""A machine for a while on the GPUs of the one in use, which are given back as they were."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from .machine import Machine
from .state.gpu import Gpu, TheMachine

# What a GPU is and has counted. Its marks stay: they are the tensors that live there.
_LENT = sorted({*Gpu.__slots__} - {"marks", "clock", "suspended", "room", "_counted", "_granted"})


@contextmanager
def lent(owner: TheMachine, gpus: int, memory: str | int) -> Iterator[Machine]:
    """Inside, torch sees a machine with the GPUs of ``owner``, the machine in use, and as many more as make ``gpus``.

    Each has ``memory``, replicas run in device order, and random states are the new machine's own. Afterwards
    ``owner`` is in use again; the size, peak, counts and time of its GPUs are what they were.
    """
    machine = Machine(max(gpus, len(owner.gpus)), memory, owner.backing)
    kept = [
        ({name: getattr(gpu, name) for name in _LENT}, gpu.total(), gpu.clock.now()) for gpu in owner.gpus
    ]
    for gpu, new in zip(owner.gpus, machine.gpus, strict=False):
        gpu.machine, gpu.capacity, gpu.fraction = machine, new.capacity, 1.0
    machine.gpus = (*owner.gpus, *machine.gpus[len(owner.gpus) :])
    try:
        with machine.open():
            yield machine
    finally:
        for gpu, (values, total, now) in zip(owner.gpus, kept, strict=True):
            for name, value in values.items():
                setattr(gpu, name, value)
            # A tensor may have stayed: the next one is counted with all others.
            gpu._counted, gpu._granted, gpu.room = total, 0, 0
            gpu.clock.advance(now - gpu.clock.now())
