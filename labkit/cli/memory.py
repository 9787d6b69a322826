"""The memory of a run's GPUs over time: seen when a module has run, when backward has, and at each optimizer's step."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from time import perf_counter
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook
from torch.optim.optimizer import register_optimizer_step_post_hook

from ..base.ours import line_here
from ..machine import machine_in_use
from ..trace.events import First
from ..trace.memory import STEP, MemorySample
from ..trace.trace import Trace


def watch(trace: Trace, most: int) -> Callable[[str], None]:
    """From now on put the first ``most`` samples of every GPU's memory into ``trace``; return what takes some now."""
    trace.samples = First(most, lambda *_: None)

    def look(label: str) -> None:
        machine = machine_in_use()
        at, line = perf_counter() - trace.origin, line_here()
        for gpu in machine.gpus if machine is not None else ():
            live, peak = gpu.look()
            trace.samples.append(MemorySample(None, f"cuda:{gpu.index}", at, live, peak, label, line))

    backward = torch.autograd.backward

    @wraps(backward)
    def watched(*arguments: Any, **more: Any) -> None:
        backward(*arguments, **more)
        look("backward")

    torch.autograd.backward = watched
    register_module_forward_hook(lambda module, *_: look(type(module).__name__))
    register_optimizer_step_post_hook(lambda *_: look(STEP))
    look("")
    return look
