"""SplitExplorer: drag the rows and the GPUs, and see who gets which rows."""

from __future__ import annotations

import ipywidgets as widgets

from ..base.language import say
from ..plans.split import split
from ..view.picture import Picture
from ..view.split import split_picture
from .explorer import Explorer


class SplitExplorer(Explorer):
    """Sliders for ``rows`` (0 to 128) and ``gpus`` (1 to 64); both can be set and read from code."""

    limits = {"rows": (0, 128), "gpus": (1, 64)}
    unfolds = "rows"

    def __init__(self, rows: int = 30, gpus: int = 8) -> None:
        super().__init__(rows=rows, gpus=gpus)

    def controls(self) -> dict[str, widgets.Widget]:
        """The sliders, labelled in the language in use."""
        return {
            "rows": self.slider("rows", say(en="Rows in the batch", zh="批次行数")),
            "gpus": self.slider("gpus", say(en="GPUs", zh="GPU 数")),
        }

    def drawn(self) -> Picture:
        return split_picture(split(self.rows, self.gpus))
