"""Charts of values against the number of GPUs: lines that are told apart by dashes, marks and a name at their end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import log2

from ..base.language import say
from ..base.units import time_unit
from .layout import legend, text_width
from .palette import CPU
from .picture import Box, Line, Picture, Sketch, Text

TOP, TALL = 78, 178
HEIGHT = TOP + TALL + 68
# The two charts of a picture: left edge and width of what the axes span. Right of it are the names.
CHARTS = ((58, 206), (418, 206))
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
    """The upward axis: a title with its unit, the value at the top, how ticks and values are written."""

    title: str
    top: float
    tick: Callable[[float], str]
    told: Callable[[float], str]


def times(
    en: str, zh: str, seconds: Mapping[str, Sequence[float | None]]
) -> tuple[Axis, Mapping[str, Sequence[float | None]]]:
    """The chart of times: its axis, called so and in the unit that suits the longest, and the values in that unit."""
    longest = max(s for found in seconds.values() for s in found if s is not None)
    scale, unit = time_unit(longest)
    title = say(en=f"{en}, {unit}", zh=f"{zh}（{_UNITS[unit]}）")
    axis = Axis(title, nice(longest * scale or 1.0), "{:.4g}".format, f"{{:.4g}} {unit}".format)
    return axis, {way: [s and s * scale for s in found] for way, found in seconds.items()}


def _key(styles: Sequence[Style], names: dict[str, str]) -> list[Box | Line | Text]:
    """The legend over the charts."""
    marks: list[tuple[str, list[Box | Line]]] = []
    for style in styles:
        line = Line(0, 20, 32, 20, dashed=style.dashed, strong=style.strong)
        marks.append((names[style.key], [line, *_marked(16, 20, style, f"legend {style.key}")]))
    return legend(CHARTS[0][0], 24, marks, mark=40, gap=24, size=12)


def _chart(
    at: int,
    axis: Axis,
    counts: Sequence[int],
    under: str,
    curves: Sequence[tuple[Style, Sequence[float | None], str, str]],
) -> list[Box | Line | Text]:
    """Chart number ``at`` of :data:`CHARTS`.

    under    what the counts are called, below the axis.
    curves   style, a value for each count (None where there is none), name in full, name at its end.
    """
    left, across = CHARTS[at]
    places = _places(counts, left, across)
    found: list[Box | Line | Text] = [Text(left - 46, TOP - 18, axis.title, 12, bold=True)]
    for share in (0, 0.25, 0.5, 0.75, 1):
        y = TOP + TALL * (1 - share)
        found.append(Line(left, y, left + across, y, muted=True))
        found.append(Text(left - 6, y + 4, axis.tick(axis.top * share), 11, "end", muted=True))
    found += _under(counts, places)
    found.append(Text(left + across / 2, TOP + TALL + 38, under, 11, "middle", muted=True))
    ends = []
    for style, values, name, short in curves:
        points = [
            (x, TOP + TALL * (1 - min(value / axis.top, 1.0)), count, value)
            for x, count, value in zip(places, counts, values, strict=True) if value is not None
        ]  # fmt: skip
        # Without marks the line may be one stroke where it is straight; its dashes then stay whole.
        flat = not style.mark and len({round(y, 3) for _, y, *_ in points}) == 1
        for one, other in pairwise([points[0], points[-1]] if flat else points):
            found.append(Line(*one[:2], *other[:2], dashed=style.dashed, strong=style.strong))
        for x, y, count, value in points:
            tip = f"{name} · {count} GPU · {axis.told(value)}"
            found += _marked(x, y, style, f"{style.key} {count} {axis.title}", tip)
        if points:
            ends.append((points[-1][0] + 9, points[-1][1], short))
    return found + _apart(ends)


def charts_picture(
    styles: Sequence[Style],
    names: dict[str, str],
    ends: dict[str, str],
    counts: Sequence[int],
    under: str,
    measured: Sequence[tuple[Axis, Mapping[str, Sequence[float | None]]]],
    hardware: str,
    description: str,
) -> Picture:
    """Two charts side by side, of the same methods: ``names`` in full, ``ends`` at the ends of their lines.

    measured   for each chart its axis, and by method a value for each count.
    """
    sketch = Sketch()
    sketch.add(*_key(styles, names))
    for at, (axis, values) in enumerate(measured):
        curves = [(style, values[style.key], names[style.key], ends[style.key]) for style in styles]
        sketch.add(*_chart(at, axis, counts, under, curves))
    sketch.add(Text(12, HEIGHT - 10, hardware, 11, muted=True))
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


def _places(counts: Sequence[int], left: float, across: float) -> list[float]:
    """The places of the counts: each doubling is equally far."""
    low, high = log2(min(counts)), log2(max(counts))
    if high == low:
        return [left + across / 2] * len(counts)
    return [left + 8 + (across - 16) * (log2(count) - low) / (high - low) for count in counts]


def _under(counts: Sequence[int], places: list[float]) -> list[Text]:
    """The counts under the axis, as many as there is room for, the last one always."""
    texts: list[Text] = []
    free = places[-1] - text_width(str(counts[-1]), 11) / 2 - 4
    edge = -1e9
    for at, (count, x) in enumerate(zip(counts, places, strict=True)):
        half = text_width(str(count), 11) / 2
        if at == len(counts) - 1 or (x - half > edge and x + half < free):
            texts.append(Text(x, TOP + TALL + 18, str(count), 11, "middle", muted=True))
            edge = x + half + 4
    return texts


def nice(value: float) -> float:
    """The next of 1, 1.2, 1.6, 2, 3, 4, 6, 8 times a power of ten that is at least ``value``."""
    power = 1e-9
    while power * 10 < value:
        power *= 10
    return next(power * step for step in (1, 1.2, 1.6, 2, 3, 4, 6, 8, 10, 12) if power * step >= value)
