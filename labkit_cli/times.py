"""The parts of a run's timeline besides its events.

The memory of its GPUs over time: seen when a module has run, when backward has, and at each optimizer's step. And the
times of a model, in place of this computer's: ``labkit run --times h100``.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable
from functools import wraps
from time import perf_counter
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook
from torch.optim.optimizer import register_optimizer_step_post_hook

from labkit.base.ours import line_here
from labkit.base.patches import Patch, Patches
from labkit.cost.hardware import Accelerator, accelerator, copy_seconds
from labkit.cost.operators import operator_seconds
from labkit.trace import emitting
from labkit.trace.events import First
from labkit.trace.memory import STEP, MemorySample
from labkit.trace.trace import Trace
from simgpu import Gpu, machine_in_use
from simgpu.features.tensors_without_data import WatchingMode

_KEPT = 50_000  # moments: nothing lasts longer


def watch(trace: Trace, most: int, clock: Clock | None) -> Callable[[str], None]:
    """From now on put the first ``most`` samples of every GPU's memory into ``trace``; return what takes some now."""
    trace.samples = First(most, lambda *_: None)

    def look(label: str) -> None:
        machine = machine_in_use()
        now = perf_counter() if clock is None else max(clock.until.values(), default=0.0)
        at, line = now - trace.origin, line_here()
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


class Clock(emitting.EventClock):
    """Each device's time until which it works, in seconds of the run.

    An operator adds its own to its GPU's; a copy begins when both its ends are free, and takes its bytes over the link.
    So what GPUs do at once is at once, and the host's Python takes no time. A reading of the clock is the number of a
    moment: by the device of its event it is known later whose time counts.
    """

    def __init__(self, gpu: Accelerator) -> None:
        self.gpu, self.until = gpu, defaultdict[str, float](float)
        self._moments: dict[int, dict[str, float]] = {}
        self._read = 0

    def saw(self, func: Any, args: Any, kwargs: Any, results: Any, gpu: Gpu) -> None:
        """An operator ran on ``gpu``."""
        self.until[f"cuda:{gpu.index}"] += operator_seconds(func, args, kwargs, results, self.gpu)[1]

    def now(self) -> float:
        self._read += 1
        self._moments[self._read] = dict(self.until)
        self._moments.pop(self._read - _KEPT, None)
        return self._read

    def span_of_event(
        self, started: float, phase: str, device: str, source: str | None = None, nbytes: int = 0, **_: Any
    ) -> tuple[float, float]:
        """When an event began that ends now, and its seconds."""
        before = self._moments.get(int(started), {})
        if phase == "parallel_apply":
            begins = before.get(device, 0.0)
            return begins, self.until[device] - begins
        seconds = copy_seconds(nbytes, device, source, self.gpu.links)
        if source is None or not seconds:
            return self.until[device], 0.0
        # Weights go as a pipeline through all GPUs at the same time, rows in turn.
        ends = [before.get(one, 0.0) if phase == "replicate" else self.until[one] for one in (source, device)]
        begins = max(ends)
        for one in (source, device):
            self.until[one] = max(self.until[one], begins + seconds)
        return begins, seconds


def begin(called: str, trace: Trace) -> Clock:
    """From now on ``trace`` has the times of the GPU ``called`` so; return its clock."""
    clock = Clock(accelerator(called))
    bootstrap = threading.Thread._bootstrap_inner  # type: ignore[attr-defined]

    def entered(thread: threading.Thread) -> None:
        with WatchingMode(clock.saw):
            bootstrap(thread)

    Patches(lambda: [Patch(threading.Thread, "_bootstrap_inner", entered)]).put_in()
    emitting.time_by(clock)
    WatchingMode(clock.saw).__enter__()
    trace.origin = 0.0
    return clock
