"""TimelineExplorer: a step of DataParallel in time, predicted or recorded, with a moment to move through it."""

from __future__ import annotations

from dataclasses import replace

from ..base.language import say
from ..base.numbers import instance
from ..cost import PROFILES, Hardware, Workload, step_trace
from ..cost.published import RESNET50
from ..trace.events import Trace
from ..view.picture import Picture
from ..view.pictures.timeline import moment_of, timeline_picture
from .explorer import Explorer


class TimelineExplorer(Explorer):
    """A step with ``rows`` rows (1 to 128) on ``gpus`` GPUs (1 to 64), and a ``moment`` in percent of it.

    trace           a recording: it is shown instead of a prediction, and only ``moment`` moves.
    work, hardware  what is predicted: by default ResNet-50 on V100 GPUs, as many of them as it takes.
    """

    unfolds = "moment"

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

    def labels(self) -> dict[str, str]:
        return super().labels() | {"moment": say(en="Moment, in percent", zh="时刻（%）")}

    def drawn(self) -> Picture:
        trace = self._trace
        if trace is None:
            trace = step_trace(self._work, self._hardware, self.rows, self.gpus)
        return timeline_picture(trace, moment_of(trace, self.moment / 100))
