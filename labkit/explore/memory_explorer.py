"""MemoryExplorer: rows, GPUs, weights and optimizer, and what they put on each GPU."""

from __future__ import annotations

from ..base.language import say
from ..plans.footprint import OPTIMIZERS, million_parameters
from ..view.picture import Picture
from ..view.pictures.memory_lanes import memory_picture
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

    def labels(self) -> dict[str, str]:
        return super().labels() | {
            "optimizer": say(en="Optimizer", zh="优化器"),
            "moment": say(en="Moment", zh="时刻"),
        }

    def called(self, name: str) -> dict[str, str]:
        if name == "optimizer":
            return {"SGD": "SGD", "momentum": say(en="SGD, momentum", zh="SGD（带动量）"), "Adam": "Adam"}
        return {
            "running": say(en="during a call", zh="调用期间"),
            "between": say(en="between two calls", zh="两次调用之间"),
        }

    def drawn(self) -> Picture:
        memory = million_parameters(
            self.rows, self.gpus, self.parameters, self.optimizer, running=self.moment == "running", **self._sizes
        )  # fmt: skip
        return memory_picture(memory)
