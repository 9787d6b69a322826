"""MemoryExplorer: rows, GPUs, weights and optimizer, and what they put on each GPU."""

from __future__ import annotations

import ipywidgets as widgets

from ..base.language import say
from ..plans.footprint import OPTIMIZERS, million_parameters
from ..view.memory import memory_picture
from ..view.picture import Picture
from .explorer import Explorer


class MemoryExplorer(Explorer):
    """A step with ``rows`` rows (0 to 128) on ``gpus`` GPUs (1 to 64).

    parameters   millions of them, 1 to 1,000, in float32.
    optimizer    "SGD", "momentum" or "Adam".
    moment       "running": during a call; "between": between two calls.
    activations, outputs, capacity   bytes per row, bytes per row, and bytes that each GPU has.
    """

    limits = {"rows": (0, 128), "gpus": (1, 64), "parameters": (1, 1000)}
    choices = {"optimizer": tuple(OPTIMIZERS), "moment": ("running", "between")}
    unfolds = "gpus"

    def __init__(
        self, rows: int = 64, gpus: int = 4, parameters: int = 110, optimizer: str = "Adam", moment: str = "running",
        *, activations: int = 400 * 2**20, outputs: int = 32 * 2**20, capacity: int | None = 16 * 2**30,
    ) -> None:  # fmt: skip
        self._sizes = {"activations": activations, "outputs": outputs, "capacity": capacity}
        super().__init__(rows=rows, gpus=gpus, parameters=parameters, optimizer=optimizer, moment=moment)

    def controls(self) -> dict[str, widgets.Widget]:
        """The sliders and lists, labelled in the language in use."""
        moments = {
            "running": say(en="during a call", zh="调用期间"),
            "between": say(en="between two calls", zh="两次调用之间"),
        }
        optimizers = {"SGD": "SGD", "momentum": say(en="SGD, momentum", zh="SGD（带动量）"), "Adam": "Adam"}
        return {
            "rows": self.slider("rows", say(en="Rows in the batch", zh="批次行数")),
            "gpus": self.slider("gpus", say(en="GPUs", zh="GPU 数")),
            "parameters": self.slider("parameters", say(en="Million parameters", zh="参数（百万）")),
            "optimizer": self.choice("optimizer", say(en="Optimizer", zh="优化器"), optimizers),
            "moment": self.choice("moment", say(en="Moment", zh="时刻"), moments),
        }

    def drawn(self) -> Picture:
        memory = million_parameters(
            self.rows, self.gpus, self.parameters, self.optimizer, running=self.moment == "running", **self._sizes
        )  # fmt: skip
        return memory_picture(memory)
