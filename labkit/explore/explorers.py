"""The explorers: the states of each, and the picture of a state."""

from __future__ import annotations

from dataclasses import replace

from ..base.numbers import instance
from ..cost import PROFILES, Hardware, Workload, step_trace
from ..cost.published import RESNET50
from ..plans.footprint import OPTIMIZERS, million_parameters
from ..plans.ring import Ring
from ..plans.split import split
from ..trace.trace import Trace
from ..view.picture import Picture
from ..view.pictures.call_flow import STEPS, flow_picture
from ..view.pictures.lanes import memory_picture, split_picture
from ..view.pictures.ring_steps import all_reduce_picture
from ..view.pictures.shape_blocks import shapes_picture
from ..view.pictures.timeline import moment_of, timeline_picture
from .explorer import Explorer


class SplitExplorer(Explorer):
    """Sliders for ``rows`` (0 to 128) and ``gpus`` (1 to 64); both can be set and read from code."""

    limits = {"rows": (0, 128), "gpus": (1, 64)}
    counts = ("gpus",)
    unfolds = "rows"

    def __init__(self, rows: int = 30, gpus: int = 8) -> None:
        super().__init__(rows=rows, gpus=gpus)

    def make_picture(self) -> Picture:
        return split_picture(split(self.rows, self.gpus))


class CallExplorer(Explorer):
    """A call with ``rows`` rows (0 to 128) on ``gpus`` GPUs (2 to 64) at ``step`` (0 to 7).

    The line of code, the tensors and the devices move together. Play runs through the steps. On one GPU DataParallel
    calls the module itself, and there is nothing to show.
    """

    limits = {"rows": (0, 128), "gpus": (2, 64), "step": (0, len(STEPS) - 1)}
    counts = ("gpus",)
    unfolds = plays = "step"
    labels = {"step": "step-of-call"}

    def __init__(self, rows: int = 10, gpus: int = 4, step: int = 0) -> None:
        super().__init__(rows=rows, gpus=gpus, step=step)

    def make_picture(self) -> Picture:
        return flow_picture(split(self.rows, self.gpus), self.step)


class RingExplorer(Explorer):
    """An all-reduce around a ring of ``ranks`` ranks (1 to 16) after ``step`` steps (0 to 2 × (ranks − 1)).

    Play runs through the steps; a clock shows how far a star is at the same time.
    """

    limits = {"ranks": (1, 16), "step": (0, 30)}
    unfolds = plays = "step"

    def __init__(self, ranks: int = 4, step: int = 0) -> None:
        super().__init__(ranks=ranks, step=step)

    def span(self, name: str) -> tuple[int, int]:
        return (0, 2 * (self.ranks - 1)) if name == "step" else super().span(name)

    def make_picture(self) -> Picture:
        return all_reduce_picture(Ring(self.ranks, min(self.step, self.span("step")[1])))


class ShapesExplorer(Explorer):
    """An output whose batch of ``rows`` rows (1 to 128) is on dimension ``batch_dim``, made on ``gpus`` GPUs.

    others   the sizes of the other dimensions, in order; by default those of a text recogniser's output,
             65 places × 5,530 characters.
    """

    unfolds = "batch_dim"
    counts = ("gpus",)

    def __init__(
        self, batch_dim: int = 1, gpus: int = 2, rows: int = 32, others: tuple[int, ...] = (65, 5530)
    ) -> None:
        self._others = tuple(others)
        self.limits = {"batch_dim": (0, len(self._others)), "gpus": (1, 64), "rows": (1, 128)}
        super().__init__(batch_dim=batch_dim, gpus=gpus, rows=rows)

    def make_picture(self) -> Picture:
        shape = (*self._others[: self.batch_dim], self.rows, *self._others[self.batch_dim :])
        return shapes_picture(shape, self.gpus, batch_dim=self.batch_dim)


class MemoryExplorer(Explorer):
    """A step with ``rows`` rows (0 to 128) on ``gpus`` GPUs (1 to 64).

    parameters   millions of them, 1 to 1,000, in float32.
    optimizer    "SGD", "momentum" or "Adam".
    moment       "running": during a call; "between": between two calls.
    activations, outputs, capacity   bytes per row, bytes per row, and bytes that each GPU has.
    """

    limits = {"rows": (0, 128), "gpus": (1, 64), "parameters": (1, 1000)}
    choices = {"optimizer": tuple(OPTIMIZERS), "moment": ("running", "between")}
    counts = ("gpus",)
    unfolds = "gpus"

    def __init__(
        self, rows: int = 64, gpus: int = 4, parameters: int = 110, optimizer: str = "Adam", moment: str = "running",
        *, activations: int = 400 * 2**20, outputs: int = 32 * 2**20, capacity: int | None = 16 * 2**30,
    ) -> None:  # fmt: skip
        self._sizes = {"activations": activations, "outputs": outputs, "capacity": capacity}
        super().__init__(rows=rows, gpus=gpus, parameters=parameters, optimizer=optimizer, moment=moment)

    def make_picture(self) -> Picture:
        memory = million_parameters(
            self.rows, self.gpus, self.parameters, self.optimizer, running=self.moment == "running", **self._sizes
        )  # fmt: skip
        return memory_picture(memory)


class TimelineExplorer(Explorer):
    """A step with ``rows`` rows (1 to 128) on ``gpus`` GPUs (1 to 64), and a ``moment`` in percent of it.

    trace           a recording: it is shown instead of a prediction, and only ``moment`` moves.
    work, hardware  for the prediction; by default ResNet-50 on a machine with enough V100 GPUs.
    """

    unfolds = "moment"
    counts = ("gpus",)
    labels = {"moment": "percent"}
    even = ("moment",)

    def __init__(
        self, trace: Trace | None = None, *, rows: int = 32, gpus: int = 4, moment: int = 0,
        work: Workload = RESNET50, hardware: Hardware = PROFILES["v100-nvlink"],
    ) -> None:  # fmt: skip
        self._trace = None if trace is None else instance("trace", trace, Trace)
        self._work = instance("work", work, Workload)
        size = instance("hardware", hardware, Hardware).machine_size
        self._hardware = replace(hardware, machine_size=max(size, 64))
        self.limits = {"rows": (1, 128), "gpus": (1, 64), "moment": (0, 100)}
        state = {"moment": moment} if trace is not None else {"rows": rows, "gpus": gpus, "moment": moment}
        super().__init__(**state)

    def make_picture(self) -> Picture:
        trace = self._trace
        if trace is None:
            trace = step_trace(self._work, self._hardware, self.rows, self.gpus)
        return timeline_picture(trace, moment_of(trace, self.moment / 100))
