"""Samples of a rank's memory for the recording that is open."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.nn import Module
from torch.nn.modules.module import register_module_forward_hook
from torch.optim.optimizer import register_optimizer_step_post_hook

from labkit.base.ours import line_here
from labkit.trace import emitting as trace
from labkit.trace.memory import STEP, MemorySample

from .rank import current_rank


def sample_memory(label: str, device: str = "") -> None:
    """Tell how much memory is in use on a GPU of the rank that is here: now, and at most since it was told last.

    Elsewhere than on the rank's own thread, in its turn, its clock stands, or another's memory has changed.

    label    what goes on: a collective's kind, a module's name.
    device   the GPU, as the rank calls it; that of its own number if not given or not a GPU.
    """
    rank = current_rank()
    if trace.recording is None or rank is None:
        return
    kind, _, number = device.partition(":")
    given = kind == "cuda" and number and int(number) < len(rank.gpus)
    gpu = rank.gpus[int(number)] if given else rank.gpu
    if gpu is None:
        return
    live, peak = gpu.look()
    trace.sample(MemorySample(rank.number, str(gpu.device), rank.clock(), live, peak, label, line_here()))


@contextmanager
def sample_at_modules() -> Iterator[None]:
    """Inside, if a recording is open, each rank tells of memory when a module has run, or an optimizer stepped."""
    if trace.recording is None:
        yield
        return

    def hook(module: Module, inputs: Any, outputs: Any) -> None:
        sample_memory(type(module).__name__)

    def stepped(optimizer: Any, *_: Any) -> None:
        sample_memory(STEP)

    handles = register_module_forward_hook(hook), register_optimizer_step_post_hook(stepped)
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
