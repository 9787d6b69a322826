"""The picture of trainings beside one another: the loss of each, step by step."""

from __future__ import annotations

from typing import Any

from ...base.language import say
from ...trace.curves import Curves
from ..captions import caption
from ..charts import Axis, Counts, Curve, charts_picture, nice
from ..picture import Picture

# The names of trainings that are words; any other is shown as it was given.
_NAMED = ("one_gpu", "data_parallel", "mean_of_means")
# By the order in which they are given: so curves that lie on one another can all be seen.
_SQUARES = {"dashed": True, "mark": "square"}
_LOOKS: tuple[dict[str, Any], ...] = ({"strong": True}, {"mark": "disc"}, _SQUARES, {"dashed": True}, {})


def curves_picture(found: Curves) -> Picture:
    """One chart: upwards the loss, to the right the steps."""
    names = {name: caption("curve", name) if name in _NAMED else name for name in found.losses}
    curves = []
    for at, (name, values) in enumerate(found.losses.items()):
        curves.append(Curve(name, names[name], f"{values[-1]:.2f}", [values], **_LOOKS[at % len(_LOOKS)]))
    steps = range(len(next(iter(found.losses.values()))))
    most = max(max(values) for values in found.losses.values())
    axis = Axis(say(en="loss", zh="损失"), nice(most or 1.0), "{:.4g}".format, "{:.4g}".format)
    told = say(en="; ", zh="；").join(
        say(en=f"{names[name]}: from {values[0]:.2f} to {values[-1]:.2f}",
            zh=f"{names[name]}：从 {values[0]:.2f} 到 {values[-1]:.2f}")
        for name, values in found.losses.items()
    )  # fmt: skip
    unit = say(en="steps", zh="步")
    return charts_picture(curves, [axis], Counts(steps, unit, unit), "", caption("curves", told=told))
