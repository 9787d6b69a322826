"""CallExplorer: go through one data-parallel call step by step, there and back."""

from __future__ import annotations

import ipywidgets as widgets

from ..base.language import say
from ..plans.split import split
from ..view.picture import Picture
from ..view.pictures.call_flow import STEPS, flow_picture
from .explorer import Explorer


class CallExplorer(Explorer):
    """A call with ``rows`` rows (0 to 128) on ``gpus`` GPUs (1 to 64) at ``step`` (0 to 7).

    The line of code, the tensors and the devices move together. Play runs through the steps.
    """

    limits = {"rows": (0, 128), "gpus": (1, 64), "step": (0, len(STEPS) - 1)}
    unfolds = "step"

    def __init__(self, rows: int = 10, gpus: int = 4, step: int = 0) -> None:
        super().__init__(rows=rows, gpus=gpus, step=step)

    def labels(self) -> dict[str, str]:
        return super().labels() | {"step": say(en="Step of the call", zh="调用的步骤")}

    def helpers(self) -> list[widgets.Widget]:
        """Play, pause, stop, repeat; the browser moves the slider with it."""
        least, most = self.limits["step"]
        play = widgets.Play(value=self.step, min=least, max=most, interval=1500)
        play.add_class("labkit-play")
        # Kept, because the link ends with the object.
        self._link = widgets.jslink((play, "value"), (self._controls["step"], "value"))
        layout = {
            "width": "140px",
            "margin": "2px 8px 2px 2px",
            "display": "flex",
            "justify_content": "flex-end",
        }
        label = widgets.Label(say(en="Play", zh="播放"), layout=layout)
        return [widgets.HBox([label, play])]

    def drawn(self) -> Picture:
        return flow_picture(split(self.rows, self.gpus), self.step)
