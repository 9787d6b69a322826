"""SplitExplorer: drag the rows and the GPUs, and see who gets which rows."""

from __future__ import annotations

from ..plans.split import split
from ..view.picture import Picture
from ..view.pictures.split_lanes import split_picture
from .explorer import Explorer


class SplitExplorer(Explorer):
    """Sliders for ``rows`` (0 to 128) and ``gpus`` (1 to 64); both can be set and read from code."""

    limits = {"rows": (0, 128), "gpus": (1, 64)}
    unfolds = "rows"

    def __init__(self, rows: int = 30, gpus: int = 8) -> None:
        super().__init__(rows=rows, gpus=gpus)

    def drawn(self) -> Picture:
        return split_picture(split(self.rows, self.gpus))
