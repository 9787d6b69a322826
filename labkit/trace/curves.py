"""The losses of several trainings, step by step."""

from __future__ import annotations

from collections.abc import Iterable
from math import isfinite

from ..base.display import Drawn
from ..base.language import wrong


class Curves(Drawn):
    """The losses of several trainings: ``Curves(one_gpu=[1.4, 1.1, …], data_parallel=[…])``.

    losses   by the name of each training: its loss at each step. All have equally many, finite numbers.

    Raises ValueError, naming the training, for losses that cannot be drawn beside the others.
    """

    def __init__(self, **losses: Iterable[float]) -> None:
        self.losses = {name: tuple(float(loss) for loss in values) for name, values in losses.items()}
        for name, values in self.losses.items():
            odd = next((step for step, loss in enumerate(values) if not isfinite(loss)), None)
            if odd is not None:
                raise wrong(
                    en=f"the losses of {name} must be finite, that of step {odd} is {values[odd]}: did it diverge?",
                    zh=f"{name} 的损失必须是有限的数，第 {odd} 步却是 {values[odd]}：训练发散了吗？",
                )
        steps = {len(values) for values in self.losses.values()}
        if len(steps) != 1 or not min(steps):
            counts = ", ".join(f"{name}: {len(values)}" for name, values in self.losses.items())
            raise wrong(
                en=f"each training must have the same number of losses, at least one; got {counts or 'no training'}",
                zh=f"各次训练的损失个数必须相同，至少一个；现在是 {counts or '一次训练也没有'}",
            )

    def __repr__(self) -> str:
        return "\n".join(
            f"{name}: {values[0]:.2f} → {values[-1]:.2f}" for name, values in self.losses.items()
        )
