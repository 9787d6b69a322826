"""ShapesExplorer: move the batch dimension, and see what gather makes of the output."""

from __future__ import annotations

from ..base.language import say
from ..view.picture import Picture
from ..view.pictures.shape_blocks import shapes_picture
from .explorer import Explorer


class ShapesExplorer(Explorer):
    """An output whose batch of ``rows`` rows (1 to 128) is on dimension ``batch_dim``, made on ``gpus`` GPUs.

    others   the sizes of the other dimensions, in order; by default those of a text recogniser's output,
             65 places × 5,530 characters.
    """

    unfolds = "batch_dim"

    def __init__(
        self, batch_dim: int = 1, gpus: int = 2, rows: int = 32, others: tuple[int, ...] = (65, 5530)
    ) -> None:
        self._others = tuple(others)
        self.limits = {"batch_dim": (0, len(self._others)), "gpus": (1, 64), "rows": (1, 128)}
        super().__init__(batch_dim=batch_dim, gpus=gpus, rows=rows)

    def labels(self) -> dict[str, str]:
        return super().labels() | {"batch_dim": say(en="Batch dimension", zh="批次维度")}

    def drawn(self) -> Picture:
        shape = (*self._others[: self.batch_dim], self.rows, *self._others[self.batch_dim :])
        return shapes_picture(shape, self.gpus, batch_dim=self.batch_dim)
