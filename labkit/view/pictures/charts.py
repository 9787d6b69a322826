"""Charts of values against a count (of GPUs, of steps), such as losses.

Lines differ by dashes, marks and a name at their end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, floor, log2, log10
from typing import Any

from ...base.language import say
from ...trace.curves import Curves
from ..captions import caption
from ..layout import legend, move, text_width
from ..palette import CPU
from ..picture import NARROW, WIDTH, Box, Label, Line, Picture, Sketch

TOP, TALL = 78, 178
HEIGHT = TOP + TALL + 68
# The two charts of a picture: left edge and width of the axes. Names stand on the right.
CHARTS = ((58, 206), (418, 206))
# The same for a single chart.
WIDE = ((58, 516),)
_BELOW = TALL + 78
_MARK, _NAME = 7.0, 10.5
# Height of a name at the end of a line.
_LABEL = 13.0
# Width for names at the ends of lines.
_ROOM = 90.0
# Names of trainings to translate; others are shown as given.
_NAMED = ("one_gpu", "data_parallel", "mean_of_means")
# Looks by order, so that overlapping curves can all be seen.
_SQUARES = {"dashed": True, "mark": "square"}
_LOOKS: tuple[dict[str, Any], ...] = ({"strong": True}, {"mark": "disc"}, _SQUARES, {"dashed": True}, {})


@dataclass(frozen=True)
class Curve:
    """A line: ``name`` in full, ``short`` at its end. ``mark``: "disc", "square", or "" for none.

    values   for each chart a value for each count, None where there is none.
    gpu      whose colour the marks have.
    """

    key: str
    name: str
    short: str
    values: Sequence[Sequence[float | None]]
    dashed: bool = False
    strong: bool = False
    mark: str = ""
    gpu: int = CPU


@dataclass(frozen=True)
class Axis:
    """The vertical axis: title with unit, value at the top, and formats for ticks and values.

    bottom   the value at the foot. Above 0, a power of ten, each factor of ten is equally high, and the top is a power
             of ten too.
    """

    title: str
    top: float
    tick: Callable[[float], str]
    format_tip: Callable[[float], str]
    bottom: float = 0.0

    def share(self, value: float) -> float:
        """Return the height of ``value``: 0 at the foot, 1 at the top."""
        if self.bottom:
            return min(max(log10(value / self.bottom) / log10(self.top / self.bottom), 0.0), 1.0)
        return min(value / self.top, 1.0)

    def ticks(self) -> list[float]:
        """Return the values with a horizontal line."""
        if not self.bottom:
            return [self.top * share for share in (0, 0.25, 0.5, 0.75, 1)]
        decades = round(log10(self.top / self.bottom))
        return [self.bottom * 10**at for at in range(0, decades + 1, 1 + decades // 8)]


@dataclass(frozen=True)
class Counts:
    """The horizontal axis: ``numbers`` of ``unit``, called ``title``. GPUs are on a logarithmic scale."""

    numbers: Sequence[int]
    title: str
    unit: str = "GPU"

    @property
    def even(self) -> bool:
        return self.unit != "GPU"

    def places(self, left: float, across: float) -> list[float]:
        """Return the place of each number."""
        at = [float(count) if self.even else log2(count) for count in self.numbers]
        low, high = min(at), max(at)
        if high == low:
            return [left + across / 2] * len(at)
        return [left + 8 + (across - 16) * (place - low) / (high - low) for place in at]

    def axis_labels(self, places: list[float]) -> list[Label]:
        """Return the labels that fit under the axis, always the last one; on an even scale, round numbers."""
        last, texts, edge = self.numbers[-1], list[Label](), -1e9
        apart = next(a for a in (1, 2, 5, 10, 20, 50, 100, last + 1) if last / a <= 12) if self.even else 1
        free = places[-1] - text_width(str(last), 11) / 2 - 4
        for at, (count, x) in enumerate(zip(self.numbers, places, strict=True)):
            half = text_width(str(count), 11) / 2
            if at == len(places) - 1 or (count % apart == 0 and x - half > edge and x + half < free):
                texts.append(Label(x, TOP + TALL + 18, str(count), 11, "middle", muted=True))
                edge = x + half + 4
        return texts


def decades(values: Sequence[float]) -> tuple[float, float]:
    """Return the powers of ten around the values above 0: foot and top of an axis."""
    some = [value for value in values if value > 0] or [1.0]
    low, high = floor(log10(min(some))), ceil(log10(max(some)))
    return 10.0**low, 10.0 ** max(high, low + 1)


def _key(curves: Sequence[Curve], stacked: bool) -> list[Box | Line | Label]:
    """Make the legend over the charts."""
    marks: list[tuple[str, list[Box | Line]]] = []
    for curve in curves:
        line = Line(0, 20, 32, 20, dashed=curve.dashed, strong=curve.strong)
        marks.append((curve.name, [line, *_marks(16, 20, curve, f"legend {curve.key}")]))
    left, gap, right = (12, 12, NARROW - 12) if stacked else (CHARTS[0][0], 24, WIDTH)
    return legend(left, 20 if stacked else 24, marks, text_offset=40, gap=gap, size=12, right=right)


def _chart(
    at: int, span: tuple[float, float], axis: Axis, counts: Counts, curves: Sequence[Curve]
) -> list[Box | Line | Label]:
    """Make chart number ``at``; ``span``: left edge and width of its axes."""
    left, across = span
    places = counts.places(left, across)
    found: list[Box | Line | Label] = [Label(left - 46, TOP - 18, axis.title, 12, bold=True)]
    for tick in axis.ticks():
        y = TOP + TALL * (1 - axis.share(tick) if tick else 1)
        found.append(Line(left, y, left + across, y, muted=True))
        found.append(Label(left - 6, y + 4, axis.tick(tick), 11, "end", muted=True))
    found += counts.axis_labels(places)
    found.append(Label(left + across / 2, TOP + TALL + 38, counts.title, 11, "middle", muted=True))
    ends = []
    for curve in curves:
        points = [
            (x, TOP + TALL * (1 - axis.share(value)), count, value)
            for x, count, value in zip(places, counts.numbers, curve.values[at], strict=True)
            if value is not None and (value or not axis.bottom)
        ]  # fmt: skip
        # A straight line without marks is one stroke, so that its dashes stay whole.
        flat = not curve.mark and len({round(y, 3) for _, y, *_ in points}) == 1
        for one, other in pairwise([points[0], points[-1]] if flat else points):
            found.append(Line(*one[:2], *other[:2], dashed=curve.dashed, strong=curve.strong))
        for x, y, count, value in points[:: 1 + len(points) // 20 if counts.even else 1]:
            tip = f"{curve.name} · {count} {counts.unit} · {axis.format_tip(value)}"
            found += _marks(x, y, curve, f"{curve.key} {count} {axis.title}", tip)
        if points:
            ends.append((points[-1][0] + 9, points[-1][1], curve.short))
    last = places[-1] + 9  # a line that ends earlier is crossed by the others
    names = _label_ends([end for end in ends if end[0] == last])
    lines = [shape for shape in found if isinstance(shape, Line)]
    names += [_label_inner_end(end, lines, names) for end in ends if end[0] < last]
    return found + names


def _label_inner_end(end: tuple[float, float, str], lines: Sequence[Line], names: Sequence[Label]) -> Label:
    """Label a line that ends before the others, as near to its end as no line and no label is crossed."""
    x, y, words = end
    stop = x + text_width(words, _NAME)
    taken = [(name.y - _NAME, name.y) for name in names if name.x < stop]
    for line in lines:
        low, high = max(x, line.x1), min(stop, line.x2)
        if low < high:
            slope = (line.y2 - line.y1) / (line.x2 - line.x1)
            ys = [line.y1 + slope * (at - line.x1) for at in (low, high)]
            taken.append((min(ys), max(ys)))
    half = _NAME / 2 + 1
    heights = [y + side * away for away in range(0, TALL, 3) for side in (-1, 1)]
    inside = (at for at in heights if TOP - half <= at <= TOP + TALL)
    free = (at for at in inside if all(high < at - half or low > at + half for low, high in taken))
    return Label(x, next(free, y) + 3.5, words, _NAME)


def charts_picture(
    curves: Sequence[Curve], axes: Sequence[Axis], counts: Counts, note: str, description: str,
    stacked: bool = False,
) -> Picture:  # fmt: skip
    """Draw one chart, or two side by side, or below each other, of the same methods, with ``note`` at the foot."""
    sketch = Sketch()
    sketch.add(*_key(curves, stacked))
    for at, span in enumerate([CHARTS[0]] * 2 if stacked else CHARTS if len(axes) > 1 else WIDE):
        below = at * _BELOW * stacked
        sketch.add(*(move(shape, 0, below) for shape in _chart(at, span, axes[at], counts, curves)))
    height = HEIGHT + _BELOW * stacked
    sketch.add(Label(12, height - 10, note, 11, muted=True))
    return sketch.picture(height, description, NARROW if stacked else WIDTH)


def _marks(x: float, y: float, curve: Curve, label: str, tip: str = "") -> list[Box]:
    if not curve.mark:
        return []
    half = _MARK / 2
    return [Box(x - half, y - half, _MARK, _MARK, curve.gpu, label, tip=tip, round=curve.mark == "disc")]


def _label_ends(ends: list[tuple[float, float, str]]) -> list[Label]:
    """Label the ends of lines; labels that would meet are spread evenly around their ends.

    Four or more lines that all end in one point get one label, and so do those with the same words; three or more of
    several share their lines.
    """
    ordered = sorted(ends, key=lambda end: (end[1], end[2]))
    if len(ends) > 3 and ordered[-1][1] - ordered[0][1] < 3:
        ordered = [(*ends[0][:2], say(en=f"all {len(ends)}", zh=f"全部 {len(ends)} 条"))]
    near = 6.5 if len(ends) > 4 else 1.5  # many lines: half the height of a label
    ordered = [end for group in _at_one_point(ordered, near) for end in _in_rows(_join_equal(group))]
    blocks = list[list[tuple[float, float, str]]]()
    for end in ordered:
        blocks.append([end])
        while len(blocks) > 1 and _top_of(blocks[-1]) < _top_of(blocks[-2]) + _LABEL * len(blocks[-2]):
            blocks[-2:] = [blocks[-2] + blocks[-1]]
    return [
        Label(x, _top_of(block) + _LABEL * at + 3.5, words, _NAME)
        for block in blocks
        for at, (x, _, words) in enumerate(block)
    ]


def _top_of(block: list[tuple[float, float, str]]) -> float:
    """Return the height of the first of labels that stand in a block around their ends, between top and foot."""
    spread = _LABEL * (len(block) - 1)
    middle = sum(y for _, y, _ in block) / len(block)
    return max(TOP, min(middle - spread / 2, TOP + TALL - 1.0 - spread))


def _at_one_point(
    ordered: list[tuple[float, float, str]], near: float
) -> list[list[tuple[float, float, str]]]:
    """Group the ends, ordered by height, that are less than ``near`` pixels from the first of their group."""
    groups = list[list[tuple[float, float, str]]]()
    for end in ordered:
        if groups and end[1] - groups[-1][0][1] < near:
            groups[-1].append(end)
        else:
            groups.append([end])
    return groups


def _join_equal(group: list[tuple[float, float, str]]) -> list[tuple[float, float, str]]:
    """Give ends with the same words one label, which says how many they are."""
    count = len(group)
    if count == 1 or len({words for _, _, words in group}) > 1:
        return group
    x, y, words = group[0]
    both = say(en=" (both)", zh="（两条）") if count == 2 else say(en=f" (all {count})", zh=f"（{count} 条）")
    return [(x, y, words + both)]


def _in_rows(group: list[tuple[float, float, str]]) -> list[tuple[float, float, str]]:
    """Join the names of three or more ends, as many in a row as there is room for."""
    if len(group) < 3:
        return group
    x, y, row = group[0]
    rows = list[str]()
    for _, _, words in group[1:]:
        joined = f"{row} {words}"
        if text_width(joined, _NAME) > _ROOM:
            rows.append(row)
            joined = words
        row = joined
    return [(x, y, words) for words in (*rows, row)]


def nice(value: float) -> float:
    """Return the next of 1, 1.2, 1.6, 2, 3, 4, 6, 8 times a power of ten that is at least ``value``."""
    power = 1e-9
    while power * 10 < value:
        power *= 10
    return next(power * step for step in (1, 1.2, 1.6, 2, 3, 4, 6, 8, 10, 12) if power * step >= value)


def curves_picture(found: Curves) -> Picture:
    """Draw one chart of losses over steps."""
    names = {name: caption("curve", name) if name in _NAMED else name for name in found.losses}
    curves = []
    for at, (name, values) in enumerate(found.losses.items()):
        curves.append(Curve(name, names[name], f"{values[-1]:.2f}", [values], **_LOOKS[at % len(_LOOKS)]))
    steps = range(len(next(iter(found.losses.values()))))
    most = max(max(values) for values in found.losses.values())
    axis = Axis(say(en="loss", zh="损失"), nice(most or 1.0), "{:.4g}".format, "{:.4g}".format)
    summary = say(en="; ", zh="；").join(
        say(en=f"{names[name]}: from {values[0]:.2f} to {values[-1]:.2f}",
            zh=f"{names[name]}：从 {values[0]:.2f} 到 {values[-1]:.2f}")
        for name, values in found.losses.items()
    )  # fmt: skip
    unit = say(en="steps", zh="步")
    return charts_picture(curves, [axis], Counts(steps, unit, unit), "", caption("curves", summary=summary))
