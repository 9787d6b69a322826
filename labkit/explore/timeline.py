"""TimelineExplorer: a step of DataParallel in time, predicted or recorded, with a moment to move through it."""

from __future__ import annotations

from dataclasses import replace

import ipywidgets as widgets

from ..base.language import say
from ..cost import PROFILES, Hardware, Workload, step_trace
from ..cost.published import RESNET50
from ..trace.events import Trace
from ..view.picture import Picture
from ..view.timeline import moment_of, timeline_picture
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
        for name, value, kind in (
            ("trace", trace, Trace),
            ("work", work, Workload),
            ("hardware", hardware, Hardware),
        ):
            if not isinstance(value, kind) and not (name == "trace" and value is None):
                raise TypeError(f"{name} must be a {kind.__name__}, got {value!r} ({type(value).__name__})")
        self._trace, self._work = trace, work
        self._hardware = replace(hardware, machine_size=max(hardware.machine_size, 64))
        self.limits = {"rows": (1, 128), "gpus": (1, 64), "moment": (0, 100)}
        state = {"moment": moment} if trace is not None else {"rows": rows, "gpus": gpus, "moment": moment}
        super().__init__(**state)

    def controls(self) -> dict[str, widgets.Widget]:
        """The sliders, labelled in the language in use."""
        labels = {
            "rows": say(en="Rows in the batch", zh="批次行数"),
            "gpus": say(en="GPUs", zh="GPU 数"),
            "moment": say(en="Moment, in percent", zh="时刻（%）"),
        }
        return {name: self.slider(name, labels[name]) for name in self._state}

    def drawn(self) -> Picture:
        trace = self._trace
        if trace is None:
            trace = step_trace(self._work, self._hardware, self.rows, self.gpus)
        return timeline_picture(trace, moment_of(trace, self.moment / 100))
