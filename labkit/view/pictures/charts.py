"""A chart of losses against steps: lines told apart by dashes, marks and a name at their end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from ...base.language import say
from ...trace.curves import Curves
from ..captions import caption
from ..layout import legend, text_width
from ..palette import CPU
from ..picture import Box, Line, Picture, Sketch, Text

TOP, TALL = 78, 178
HEIGHT = TOP + TALL + 68
# Left edge and width of what the axes span. Right of it are the names.
LEFT, ACROSS = 58, 516
_MARK, _NAME = 7.0, 10.5
# The names of trainings that are words; any other is shown as it was given.
_NAMED = ("one_gpu", "data_parallel", "mean_of_means")
# By the order in which they are given: so curves that lie on one another can all be seen.
_SQUARES = {"dashed": True, "mark": "square"}
_LOOKS: tuple[dict[str, Any], ...] = ({"strong": True}, {"mark": "disc"}, _SQUARES, {"dashed": True}, {})


@dataclass(frozen=True)
class Curve:
    """One method's line: ``name`` in full, ``short`` at its end. ``mark``: "disc", "square", or "" for none.

    values   a value for each step.
    """

    key: str
    name: str
    short: str
    values: Sequence[float]
    dashed: bool = False
    strong: bool = False
    mark: str = ""


@dataclass(frozen=True)
class Axis:
    """The upward axis from 0: a title with its unit, the value at the top, how ticks and values are written."""

    title: str
    top: float
    tick: Callable[[float], str]

    def share(self, value: float) -> float:
        """How far up ``value`` is: 0 at the foot, 1 at the top."""
        return min(value / self.top, 1.0)

    def ticks(self) -> list[float]:
        """The values that have a line across."""
        return [self.top * share for share in (0, 0.25, 0.5, 0.75, 1)]


def _under(steps: int, places: Sequence[float]) -> list[Text]:
    """As many step numbers as there is room for under the axis: the round ones, and the last."""
    last, texts, edge = steps - 1, list[Text](), -1e9
    apart = next(a for a in (1, 2, 5, 10, 20, 50, 100, steps) if last / a <= 12)
    free = places[-1] - text_width(str(last), 11) / 2 - 4
    for step, x in enumerate(places):
        half = text_width(str(step), 11) / 2
        if step == last or (step % apart == 0 and x - half > edge and x + half < free):
            texts.append(Text(x, TOP + TALL + 18, str(step), 11, "middle", muted=True))
            edge = x + half + 4
    return texts


def _key(curves: Sequence[Curve]) -> list[Box | Line | Text]:
    """The legend over the charts."""
    marks: list[tuple[str, list[Box | Line]]] = []
    for curve in curves:
        line = Line(0, 20, 32, 20, dashed=curve.dashed, strong=curve.strong)
        marks.append((curve.name, [line, *_marked(16, 20, curve, f"legend {curve.key}")]))
    return legend(LEFT, 24, marks, mark=40, gap=24, size=12)


def _chart(axis: Axis, title: str, curves: Sequence[Curve]) -> list[Box | Line | Text]:
    """The axes, the lines with their marks, and the name of each line at its end."""
    steps = len(curves[0].values)
    places = (
        [LEFT + 8 + (ACROSS - 16) * step / (steps - 1) for step in range(steps)]
        if steps > 1
        else [LEFT + ACROSS / 2]
    )
    found: list[Box | Line | Text] = [Text(LEFT - 46, TOP - 18, axis.title, 12, bold=True)]
    for tick in axis.ticks():
        y = TOP + TALL * (1 - axis.share(tick))
        found.append(Line(LEFT, y, LEFT + ACROSS, y, muted=True))
        found.append(Text(LEFT - 6, y + 4, axis.tick(tick), 11, "end", muted=True))
    found += _under(steps, places)
    found.append(Text(LEFT + ACROSS / 2, TOP + TALL + 38, title, 11, "middle", muted=True))
    ends = []
    for curve in curves:
        points = [
            (x, TOP + TALL * (1 - axis.share(value)), step, value)
            for step, (x, value) in enumerate(zip(places, curve.values, strict=True))
        ]
        # Without marks the line may be one stroke where it is straight; its dashes then stay whole.
        flat = not curve.mark and len({round(y, 3) for _, y, *_ in points}) == 1
        for one, other in pairwise([points[0], points[-1]] if flat else points):
            found.append(Line(*one[:2], *other[:2], dashed=curve.dashed, strong=curve.strong))
        for x, y, step, value in points[:: 1 + len(points) // 20]:
            tip = f"{curve.name} · {step} {title} · {axis.tick(value)}"
            found += _marked(x, y, curve, f"{curve.key} {step} {axis.title}", tip)
        ends.append((points[-1][0] + 9, points[-1][1], curve.short))
    return found + _apart(ends)


def _marked(x: float, y: float, curve: Curve, label: str, tip: str = "") -> list[Box]:
    if not curve.mark:
        return []
    half = _MARK / 2
    return [Box(x - half, y - half, _MARK, _MARK, CPU, label, tip=tip, round=curve.mark == "disc")]


def _apart(ends: list[tuple[float, float, str]]) -> list[Text]:
    """Names at the ends of lines, the lower ones pushed down (and all up again) where they would meet."""
    high = 13.0
    ordered = sorted(ends, key=lambda end: (end[1], end[2]))
    ys = [y for _, y, _ in ordered]
    for at in range(1, len(ys)):
        ys[at] = max(ys[at], ys[at - 1] + high)
    floor = TOP + TALL - 1.0
    for at in reversed(range(len(ys))):
        ys[at] = min(ys[at], floor)
        floor = ys[at] - high
    return [Text(x, y + 3.5, words, _NAME) for (x, _, words), y in zip(ordered, ys, strict=True)]


def nice(value: float) -> float:
    """The next of 1, 1.2, 1.6, 2, 3, 4, 6, 8 times a power of ten that is at least ``value``."""
    power = 1e-9
    while power * 10 < value:
        power *= 10
    return next(power * step for step in (1, 1.2, 1.6, 2, 3, 4, 6, 8, 10, 12) if power * step >= value)


def curves_picture(found: Curves) -> Picture:
    """One chart: upwards the loss, to the right the steps."""
    names = {name: caption("curve", name) if name in _NAMED else name for name in found.losses}
    curves = []
    for at, (name, values) in enumerate(found.losses.items()):
        curves.append(Curve(name, names[name], f"{values[-1]:.2f}", values, **_LOOKS[at % len(_LOOKS)]))
    most = max(max(values) for values in found.losses.values())
    axis = Axis(say(en="loss", zh="损失"), nice(most or 1.0), "{:.4g}".format)
    told = say(en="; ", zh="；").join(
        say(en=f"{names[name]}: from {values[0]:.2f} to {values[-1]:.2f}",
            zh=f"{names[name]}：从 {values[0]:.2f} 到 {values[-1]:.2f}")
        for name, values in found.losses.items()
    )  # fmt: skip
    sketch = Sketch()
    sketch.add(*_key(curves), *_chart(axis, say(en="steps", zh="步"), curves))
    return sketch.picture(HEIGHT, caption("curves", told=told))
