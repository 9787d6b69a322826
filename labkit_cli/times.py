"""Samples of GPU memory for a run's timeline, and a modelled clock for ``labkit run --times h100``.

Memory is sampled after each module's forward, after backward, and after each optimizer step.
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

from labkit.base.ours import user_line_here
from labkit.base.patches import Patch, Patches
from labkit.cost.hardware import Accelerator, accelerator, copy_seconds
from labkit.cost.operators import operator_seconds
from labkit.trace import emitting
from labkit.trace.events import First
from labkit.trace.memory import STEP, MemorySample
from labkit.trace.trace import Trace
from simgpu import Gpu, machine_in_use
from simgpu.features.tensors_without_data import WatchingMode

_KEPT = 50_000  # readings of the clock; no event spans more


def sample_memory(trace: Trace, most: int, clock: ModelledClock | None) -> Callable[[str], None]:
    """Add the first ``most`` samples of every GPU's memory to ``trace``; return a function that takes samples now."""
    trace.samples = First(most, lambda *_: None)

    def sample(label: str) -> None:
        machine = machine_in_use()
        now = perf_counter() if clock is None else max(clock.until.values(), default=0.0)
        at, line = now - trace.origin, user_line_here()
        for gpu in machine.gpus if machine is not None else ():
            live, peak = gpu.look()
            trace.samples.append(MemorySample(None, f"cuda:{gpu.index}", at, live, peak, label, line))

    backward = torch.autograd.backward

    @wraps(backward)
    def run_backward(*arguments: Any, **more: Any) -> None:
        backward(*arguments, **more)
        sample("backward")

    torch.autograd.backward = run_backward
    register_module_forward_hook(lambda module, *_: sample(type(module).__name__))
    register_optimizer_step_post_hook(lambda *_: sample(STEP))
    sample("")
    return sample


class ModelledClock(emitting.EventClock):
    """The time until which each device is busy, in seconds of the run.

    An operator adds its modelled time to its GPU. A copy begins when both devices are free, and takes the time of its
    bytes over the link. GPUs work at the same time, and Python on the host takes no time. A reading of the clock is a
    number: the event that ends later decides which device's time to look up.
    """

    def __init__(self, gpu: Accelerator) -> None:
        self.gpu, self.until = gpu, defaultdict[str, float](float)
        self._moments: dict[int, dict[str, float]] = {}
        self._read = 0

    def saw(self, func: Any, args: Any, kwargs: Any, results: Any, gpu: Gpu) -> None:
        """Add the time of an operator on ``gpu``."""
        self.until[f"cuda:{gpu.index}"] += operator_seconds(func, args, kwargs, results, self.gpu)[1]

    def now(self) -> float:
        self._read += 1
        self._moments[self._read] = dict(self.until)
        self._moments.pop(self._read - _KEPT, None)
        return self._read

    def span_of_event(
        self, started: float, phase: str, device: str, source: str | None = None, nbytes: int = 0, **_: Any
    ) -> tuple[float, float]:
        """Return beginning and duration of an event that ends now."""
        before = self._moments.get(int(started), {})
        if phase == "parallel_apply":
            begins = before.get(device, 0.0)
            return begins, self.until[device] - begins
        seconds = copy_seconds(nbytes, device, source, self.gpu.links)
        if source is None or not seconds:
            return self.until[device], 0.0
        # Replicate sends weights through all GPUs as a pipeline; scatter and gather copy rows one after the other.
        ends = [before.get(one, 0.0) if phase == "replicate" else self.until[one] for one in (source, device)]
        begins = max(ends)
        for one in (source, device):
            self.until[one] = max(self.until[one], begins + seconds)
        return begins, seconds


def begin_modelled_time(called: str, trace: Trace) -> ModelledClock:
    """Give ``trace`` the times of the GPU model named ``called``, and return the clock."""
    clock = ModelledClock(accelerator(called))
    bootstrap = threading.Thread._bootstrap_inner  # type: ignore[attr-defined]

    def run_thread(thread: threading.Thread) -> None:
        with WatchingMode(clock.saw):
            bootstrap(thread)

    Patches(lambda: [Patch(threading.Thread, "_bootstrap_inner", run_thread)]).put_in()
    emitting.time_by(clock)
    WatchingMode(clock.saw).__enter__()
    trace.origin = 0.0
    return clock
