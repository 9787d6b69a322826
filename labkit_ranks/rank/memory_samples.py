"""Samples of a rank's GPU memory for an open recording."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.nn import Module
from torch.nn.modules.module import register_module_forward_hook
from torch.optim.optimizer import register_optimizer_step_post_hook

from labkit.base.ours import user_line_here
from labkit.trace import emitting as trace
from labkit.trace.memory import STEP, MemorySample

from .clock import TimedRank
from .rank import current_rank


def sample_memory(rank: TimedRank | None, label: str, device: str = "") -> None:
    """Record the memory in use on a GPU of ``rank``, now and at most since the last sample.

    Call it on the rank's own thread, in its turn: elsewhere the clock stands, and another rank's memory may have
    changed.

    label    the collective's kind, or the module's name.
    device   the GPU, as the rank calls it; the rank's own GPU if not given or not a GPU.
    """
    if trace.recording is None or rank is None:
        return
    kind, _, number = device.partition(":")
    given = kind == "cuda" and number and int(number) < len(rank.gpus)
    gpu = rank.gpus[int(number)] if given else rank.gpu
    if gpu is None:
        return
    at, line = rank.clock(), user_line_here()
    trace.sample(MemorySample(rank.number, str(gpu.device), at, *gpu.look(), label, line))


@contextmanager
def sample_at_modules() -> Iterator[None]:
    """In this context, if a recording is open, sample memory after each module and optimizer step."""
    if trace.recording is None:
        yield
        return

    def hook(module: Module, inputs: Any, outputs: Any) -> None:
        sample_memory(current_rank(), type(module).__name__)

    def sample_step(optimizer: Any, *_: Any) -> None:
        sample_memory(current_rank(), STEP)

    handles = register_module_forward_hook(hook), register_optimizer_step_post_hook(sample_step)
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
