"""Charts of values against a count (of GPUs, of steps): lines told apart by dashes, marks and a name at their end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, floor, log2, log10

from ..base.language import say
from ..base.units import time_unit
from .layout import legend, text_width
from .palette import CPU
from .picture import Box, Line, Picture, Sketch, Text

TOP, TALL = 78, 178
HEIGHT = TOP + TALL + 68
# The two charts of a picture: left edge and width of what the axes span. Right of it are the names.
CHARTS = ((58, 206), (418, 206))
# The same of a picture with a single chart.
WIDE = ((58, 516),)
_MARK = 7.0
_UNITS = {"s": "秒", "ms": "毫秒", "µs": "微秒"}


@dataclass(frozen=True)
class Curve:
    """One method's line: ``name`` in full, ``short`` at its end. ``mark``: "disc", "square", or "" for none.

    values   for each chart a value for each count, None where there is none.
    """

    key: str
    name: str
    short: str
    values: Sequence[Sequence[float | None]]
    dashed: bool = False
    strong: bool = False
    mark: str = ""


@dataclass(frozen=True)
class Axis:
    """The upward axis: a title with its unit, the value at the top, how ticks and values are written.

    bottom   the value at the foot. Above 0, a power of ten, each factor of ten is equally high, and the top is a power
             of ten too.
    """

    title: str
    top: float
    tick: Callable[[float], str]
    told: Callable[[float], str]
    bottom: float = 0.0

    def share(self, value: float) -> float:
        """How far up ``value`` is: 0 at the foot, 1 at the top."""
        if self.bottom:
            return min(max(log10(value / self.bottom) / log10(self.top / self.bottom), 0.0), 1.0)
        return min(value / self.top, 1.0)

    def ticks(self) -> list[float]:
        """The values that have a line across."""
        if not self.bottom:
            return [self.top * share for share in (0, 0.25, 0.5, 0.75, 1)]
        decades = round(log10(self.top / self.bottom))
        return [self.bottom * 10**at for at in range(0, decades + 1, 1 + decades // 8)]


@dataclass(frozen=True)
class Counts:
    """The axis to the right: ``numbers`` of ``unit``, called ``title``.

    GPUs stand so that each doubling is equally far, anything else so that each step is.
    """

    numbers: Sequence[int]
    title: str
    unit: str = "GPU"

    @property
    def even(self) -> bool:
        return self.unit != "GPU"

    def places(self, left: float, across: float) -> list[float]:
        """The place of each of them."""
        at = [float(count) if self.even else log2(count) for count in self.numbers]
        low, high = min(at), max(at)
        if high == low:
            return [left + across / 2] * len(at)
        return [left + 8 + (across - 16) * (place - low) / (high - low) for place in at]

    def under(self, places: list[float]) -> list[Text]:
        """As many as there is room for under the axis, the last one always; of even steps the round ones."""
        last, texts, edge = self.numbers[-1], list[Text](), -1e9
        apart = next(a for a in (1, 2, 5, 10, 20, 50, 100, last + 1) if last / a <= 12) if self.even else 1
        free = places[-1] - text_width(str(last), 11) / 2 - 4
        for at, (count, x) in enumerate(zip(self.numbers, places, strict=True)):
            half = text_width(str(count), 11) / 2
            if at == len(places) - 1 or (count % apart == 0 and x - half > edge and x + half < free):
                texts.append(Text(x, TOP + TALL + 18, str(count), 11, "middle", muted=True))
                edge = x + half + 4
        return texts


def times(en: str, zh: str, longest: float) -> tuple[Axis, float]:
    """The axis of times, called so and in the unit that suits the longest, and how many of that unit a second has."""
    scale, unit = time_unit(longest)
    title = say(en=f"{en}, {unit}", zh=f"{zh}（{_UNITS[unit]}）")
    return Axis(title, nice(longest * scale or 1.0), "{:.4g}".format, f"{{:.4g}} {unit}".format), scale


def decades(values: Sequence[float]) -> tuple[float, float]:
    """The powers of ten around ``values``, of which those that are 0 do not count: foot and top of an axis."""
    some = [value for value in values if value > 0] or [1.0]
    low, high = floor(log10(min(some))), ceil(log10(max(some)))
    return 10.0**low, 10.0 ** max(high, low + 1)


def _key(curves: Sequence[Curve]) -> list[Box | Line | Text]:
    """The legend over the charts."""
    marks: list[tuple[str, list[Box | Line]]] = []
    for curve in curves:
        line = Line(0, 20, 32, 20, dashed=curve.dashed, strong=curve.strong)
        marks.append((curve.name, [line, *_marked(16, 20, curve, f"legend {curve.key}")]))
    return legend(CHARTS[0][0], 24, marks, mark=40, gap=24, size=12)


def _chart(
    at: int, span: tuple[float, float], axis: Axis, counts: Counts, curves: Sequence[Curve]
) -> list[Box | Line | Text]:
    """Chart number ``at`` in ``span``, the left edge and the width of what its axes span."""
    left, across = span
    places = counts.places(left, across)
    found: list[Box | Line | Text] = [Text(left - 46, TOP - 18, axis.title, 12, bold=True)]
    for tick in axis.ticks():
        y = TOP + TALL * (1 - axis.share(tick) if tick else 1)
        found.append(Line(left, y, left + across, y, muted=True))
        found.append(Text(left - 6, y + 4, axis.tick(tick), 11, "end", muted=True))
    found += counts.under(places)
    found.append(Text(left + across / 2, TOP + TALL + 38, counts.title, 11, "middle", muted=True))
    ends = []
    for curve in curves:
        points = [
            (x, TOP + TALL * (1 - axis.share(value)), count, value)
            for x, count, value in zip(places, counts.numbers, curve.values[at], strict=True)
            if value is not None and (value or not axis.bottom)
        ]  # fmt: skip
        # Without marks the line may be one stroke where it is straight; its dashes then stay whole.
        flat = not curve.mark and len({round(y, 3) for _, y, *_ in points}) == 1
        for one, other in pairwise([points[0], points[-1]] if flat else points):
            found.append(Line(*one[:2], *other[:2], dashed=curve.dashed, strong=curve.strong))
        for x, y, count, value in points[:: 1 + len(points) // 20 if counts.even else 1]:
            tip = f"{curve.name} · {count} {counts.unit} · {axis.told(value)}"
            found += _marked(x, y, curve, f"{curve.key} {count} {axis.title}", tip)
        if points:
            ends.append((points[-1][0] + 9, points[-1][1], curve.short))
    return found + _apart(ends)


def charts_picture(
    curves: Sequence[Curve], axes: Sequence[Axis], counts: Counts, note: str, description: str
) -> Picture:
    """One chart, or two side by side, of the same methods; ``note`` stands at the foot."""
    sketch = Sketch()
    sketch.add(*_key(curves))
    for at, span in enumerate(CHARTS if len(axes) > 1 else WIDE):
        sketch.add(*_chart(at, span, axes[at], counts, curves))
    sketch.add(Text(12, HEIGHT - 10, note, 11, muted=True))
    return sketch.picture(HEIGHT, description)


def _marked(x: float, y: float, curve: Curve, label: str, tip: str = "") -> list[Box]:
    if not curve.mark:
        return []
    half = _MARK / 2
    return [Box(x - half, y - half, _MARK, _MARK, CPU, label, tip=tip, round=curve.mark == "disc")]


def _apart(ends: list[tuple[float, float, str]]) -> list[Text]:
    """Names at the ends of lines, the lower ones pushed down (and all up again) where they would meet."""
    high, size = 13.0, 10.5
    ordered = sorted(ends, key=lambda end: (end[1], end[2]))
    ys = [y for _, y, _ in ordered]
    for at in range(1, len(ys)):
        ys[at] = max(ys[at], ys[at - 1] + high)
    floor = TOP + TALL - 1.0
    for at in reversed(range(len(ys))):
        ys[at] = min(ys[at], floor)
        floor = ys[at] - high
    return [Text(x, y + 3.5, words, size) for (x, _, words), y in zip(ordered, ys, strict=True)]


def nice(value: float) -> float:
    """The next of 1, 1.2, 1.6, 2, 3, 4, 6, 8 times a power of ten that is at least ``value``."""
    power = 1e-9
    while power * 10 < value:
        power *= 10
    return next(power * step for step in (1, 1.2, 1.6, 2, 3, 4, 6, 8, 10, 12) if power * step >= value)
