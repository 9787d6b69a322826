"""Charts of values against a count (of GPUs, of steps): lines told apart by dashes, marks and a name at their end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
class Style:
    """The look of one method's line. ``mark``: "disc", "square", or "" for none."""

    key: str
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


def times(
    en: str, zh: str, seconds: Mapping[str, Sequence[float | None]]
) -> tuple[Axis, Mapping[str, Sequence[float | None]]]:
    """The chart of times: its axis, called so and in the unit that suits the longest, and the values in that unit."""
    longest = max(s for found in seconds.values() for s in found if s is not None)
    scale, unit = time_unit(longest)
    title = say(en=f"{en}, {unit}", zh=f"{zh}（{_UNITS[unit]}）")
    axis = Axis(title, nice(longest * scale or 1.0), "{:.4g}".format, f"{{:.4g}} {unit}".format)
    return axis, {way: [s and s * scale for s in found] for way, found in seconds.items()}


def decades(values: Sequence[float]) -> tuple[float, float]:
    """The powers of ten around ``values``, of which those that are 0 do not count: foot and top of an axis."""
    some = [value for value in values if value > 0] or [1.0]
    low, high = floor(log10(min(some))), ceil(log10(max(some)))
    return 10.0**low, 10.0 ** max(high, low + 1)


def _key(styles: Sequence[Style], names: Mapping[str, str]) -> list[Box | Line | Text]:
    """The legend over the charts."""
    marks: list[tuple[str, list[Box | Line]]] = []
    for style in styles:
        line = Line(0, 20, 32, 20, dashed=style.dashed, strong=style.strong)
        marks.append((names[style.key], [line, *_marked(16, 20, style, f"legend {style.key}")]))
    return legend(CHARTS[0][0], 24, marks, mark=40, gap=24, size=12)


def _chart(
    span: tuple[float, float],
    axis: Axis,
    counts: Sequence[int],
    under: str,
    curves: Sequence[tuple[Style, Sequence[float | None], str, str]],
    unit: str,
) -> list[Box | Line | Text]:
    """A chart in ``span``, the left edge and the width of what its axes span.

    under    what the counts are called, below the axis.
    curves   style, a value for each count (None where there is none), name in full, name at its end.
    unit     what is counted: with "GPU" each doubling is equally far, else each step is.
    """
    left, across = span
    even = unit != "GPU"
    places = _places(counts, left, across, even=even)
    found: list[Box | Line | Text] = [Text(left - 46, TOP - 18, axis.title, 12, bold=True)]
    for tick in axis.ticks():
        y = TOP + TALL * (1 - axis.share(tick) if tick else 1)
        found.append(Line(left, y, left + across, y, muted=True))
        found.append(Text(left - 6, y + 4, axis.tick(tick), 11, "end", muted=True))
    found += _under(counts, places, even=even)
    found.append(Text(left + across / 2, TOP + TALL + 38, under, 11, "middle", muted=True))
    ends = []
    for style, values, name, short in curves:
        points = [
            (x, TOP + TALL * (1 - axis.share(value)), count, value)
            for x, count, value in zip(places, counts, values, strict=True)
            if value is not None and (value or not axis.bottom)
        ]  # fmt: skip
        # Without marks the line may be one stroke where it is straight; its dashes then stay whole.
        flat = not style.mark and len({round(y, 3) for _, y, *_ in points}) == 1
        for one, other in pairwise([points[0], points[-1]] if flat else points):
            found.append(Line(*one[:2], *other[:2], dashed=style.dashed, strong=style.strong))
        for x, y, count, value in points[:: 1 + len(points) // 20 if even else 1]:
            tip = f"{name} · {count} {unit} · {axis.told(value)}"
            found += _marked(x, y, style, f"{style.key} {count} {axis.title}", tip)
        if points:
            ends.append((points[-1][0] + 9, points[-1][1], short))
    return found + _apart(ends)


def charts_picture(
    styles: Sequence[Style],
    names: Mapping[str, str],
    ends: Mapping[str, str],
    counts: Sequence[int],
    under: str,
    measured: Sequence[tuple[Axis, Mapping[str, Sequence[float | None]]]],
    note: str,
    description: str,
    unit: str = "GPU",
) -> Picture:
    """One chart, or two side by side, of the same methods: ``names`` in full, ``ends`` at the ends of their lines.

    measured   for each chart its axis, and by method a value for each count.
    note       what stands at the foot.
    unit       what is counted; of anything but "GPU" each step is equally far.
    """
    sketch = Sketch()
    sketch.add(*_key(styles, names))
    for span, (axis, values) in zip(CHARTS if len(measured) > 1 else WIDE, measured, strict=True):
        curves = [(style, values[style.key], names[style.key], ends[style.key]) for style in styles]
        sketch.add(*_chart(span, axis, counts, under, curves, unit))
    sketch.add(Text(12, HEIGHT - 10, note, 11, muted=True))
    return sketch.picture(HEIGHT, description)


def _marked(x: float, y: float, style: Style, label: str, tip: str = "") -> list[Box]:
    if not style.mark:
        return []
    half = _MARK / 2
    return [Box(x - half, y - half, _MARK, _MARK, CPU, label, tip=tip, round=style.mark == "disc")]


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


def _places(counts: Sequence[int], left: float, across: float, *, even: bool) -> list[float]:
    """The places of the counts: each doubling is equally far, or if ``even`` each step."""
    at = [float(count) if even else log2(count) for count in counts]
    low, high = min(at), max(at)
    if high == low:
        return [left + across / 2] * len(counts)
    return [left + 8 + (across - 16) * (place - low) / (high - low) for place in at]


def _under(counts: Sequence[int], places: list[float], *, even: bool) -> list[Text]:
    """The counts under the axis, as many as there is room for, the last one always; of even steps the round ones."""
    apart = next(a for a in (1, 2, 5, 10, 20, 50, 100, counts[-1] + 1) if counts[-1] / a <= 12) if even else 1
    texts: list[Text] = []
    free = places[-1] - text_width(str(counts[-1]), 11) / 2 - 4
    edge = -1e9
    for at, (count, x) in enumerate(zip(counts, places, strict=True)):
        half = text_width(str(count), 11) / 2
        if at == len(counts) - 1 or (count % apart == 0 and x - half > edge and x + half < free):
            texts.append(Text(x, TOP + TALL + 18, str(count), 11, "middle", muted=True))
            edge = x + half + 4
    return texts


def nice(value: float) -> float:
    """The next of 1, 1.2, 1.6, 2, 3, 4, 6, 8 times a power of ten that is at least ``value``."""
    power = 1e-9
    while power * 10 < value:
        power *= 10
    return next(power * step for step in (1, 1.2, 1.6, 2, 3, 4, 6, 8, 10, 12) if power * step >= value)
