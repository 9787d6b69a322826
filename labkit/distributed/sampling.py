"""How much memory a rank has in use, told to the recording that is open."""

from __future__ import annotations

from ..machine.in_use import machine_in_use
from ..trace import events as trace
from ..trace.memory import MemorySample
from .rank import Rank


def sample(rank: Rank, label: str) -> None:
    """Tell how much memory is in use on the GPU that ``rank`` works on: now, and at most since it was told last.

    label   what goes on: a collective's kind, a module's name.
    """
    machine = machine_in_use()
    if trace.recording is None or machine is None or not rank.gpus:
        return
    gpu = machine.gpu(None)
    live, peak = gpu.look()
    trace.sample(MemorySample(rank.number, str(gpu.device), rank.clock(), live, peak, label))
