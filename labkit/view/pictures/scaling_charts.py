"""The picture of scaling: a step's milliseconds and efficiency against the number of GPUs."""

from __future__ import annotations

from itertools import pairwise
from math import log2

from ...base.language import say
from ...base.numbers import plural
from ...cost import Scaling
from ..layout import legend, text_width, together
from ..palette import CPU
from ..picture import WIDTH, Box, Line, Picture, Sketch, Text

_HEIGHT, _TOP, _TALL = 300, 74, 178
_CHARTS = ((62, 276), (424, 276))  # left edge and width of the two
# No method has a GPU's colour: they are told apart by their lines. (method, dashed, strong, tint of its marks)
_STYLES = (("perfect", True, False, None), ("ddp", False, False, 0.55), ("data_parallel", False, True, 0.0))
# Of more counts, some are drawn.
_MOST_COUNTS = 128


def scaling_picture(found: Scaling) -> Picture:
    """Two charts: milliseconds of a step on the left, efficiency on the right."""
    # Of each group of neighbours the last is drawn, and the first count of all.
    shown = sorted({0, *(group[-1] for group in together(len(found.counts), _MOST_COUNTS))})
    counts = [found.counts[n] for n in shown]
    names, sketch = method_names(), Sketch()
    marks: list[tuple[str, list[Box | Line]]] = []
    for method, dashed, strong, tint in _STYLES:
        line = Line(0, 20, 32, 20, dashed=dashed, strong=strong)
        mark = [] if tint is None else [Box(13, 17, 6, 6, CPU, f"legend {method}", tint=tint)]
        marks.append((names[method], [line, *mark]))
    sketch.add(*legend(_CHARTS[0][0], 24, marks, mark=40, gap=24, size=12))
    longest = max(s * 1e3 for times in found.seconds.values() for s in times if s is not None)
    titles = (say(en="ms per training step", zh="每个训练步的毫秒数"), say(en="efficiency", zh="效率"))
    for at, (left, across) in enumerate(_CHARTS):
        sketch.add(Text(left, _TOP - 18, titles[at], 12, bold=True))
        top = _nice(longest) if at == 0 else 1.0
        for share in (0, 0.25, 0.5, 0.75, 1):
            y = _TOP + _TALL * (1 - share)
            words = f"{top * share:.4g}" if at == 0 else f"{share:.0%}"
            sketch.add(
                Line(left, y, left + across, y, muted=True),
                Text(left - 6, y + 4, words, 11, "end", muted=True),
            )
        places = _places(counts, left, across)
        sketch.add(*_under(counts, places))
        for method, dashed, strong, tint in _STYLES:
            values = found.seconds[method] if at == 0 else found.efficiency(method)
            scale = 1e3 / top if at == 0 else 1.0
            points = [
                (x, _TOP + _TALL * (1 - min(value * scale, 1.0)), found.counts[n], value)
                for x, n in zip(places, shown, strict=True) if (value := values[n]) is not None
            ]  # fmt: skip
            # Perfect scaling is flat; in one stroke its dashes stay whole.
            ends = [points[0], points[-1]] if method == "perfect" else points
            for one, other in pairwise(ends):
                sketch.add(Line(*one[:2], *other[:2], dashed=dashed, strong=strong))
            if tint is None:
                continue
            for x, y, count, value in points:
                told = f"{value * 1e3:.4g} ms" if at == 0 else f"{value:.1%}"
                label, tip = f"{method} {count} {titles[at]}", f"{names[method]} · {count} GPU · {told}"
                sketch.add(Box(x - 3, y - 3, 6, 6, CPU, label, tint=tint, tip=tip))
    words = say(en="GPUs", zh="GPU 数")
    if len(counts) < len(found.counts):
        words += say(
            en=f" ({len(counts)} of {len(found.counts)} counts)",
            zh=f"（{len(found.counts)} 个中画出 {len(counts)} 个）",
        )
    sketch.add(
        Text(_CHARTS[0][0], _HEIGHT - 10, words, 11, muted=True),
        Text(WIDTH - 20, _HEIGHT - 10, found.hardware, 11, "end", muted=True),
    )
    return sketch.picture(_HEIGHT, _description(found))


def _description(found: Scaling) -> str:
    """The prediction for the most GPUs."""
    count, perfect = found.counts[-1], found.seconds["perfect"][-1] or 0.0
    ddp, last = found.efficiency("ddp")[-1], found.efficiency("data_parallel")[-1]
    text = say(
        en=f"{plural(found.rows, 'row')} on each of {plural(count, 'GPU')}: perfect scaling "
        f"takes {perfect * 1e3:.4g} ms a step; DDP reaches {ddp:.0%} of that throughput",
        zh=f"{count} 块 GPU，每块 {found.rows} 行：理想扩展每个训练步 {perfect * 1e3:.4g} ms；"
        f"DDP 达到其吞吐量的 {ddp:.0%}",
    )
    if last is None:
        return text + say(en=", DataParallel cannot leave one machine.", zh="，DataParallel 则不能跨机器。")
    return text + say(en=f", DataParallel {last:.0%}.", zh=f"，DataParallel 达到 {last:.0%}。")


def method_names() -> dict[str, str]:
    """What the methods are called in the language in use."""
    return {
        "perfect": say(en="perfect scaling", zh="理想扩展"),
        "ddp": "DistributedDataParallel",
        "data_parallel": "DataParallel",
    }


def _places(counts: list[int], left: float, across: float) -> list[float]:
    """Where the counts stand, each doubling equally far."""
    low, high = log2(min(counts)), log2(max(counts))
    if high == low:
        return [left + across / 2] * len(counts)
    return [left + 10 + (across - 20) * (log2(count) - low) / (high - low) for count in counts]


def _under(counts: list[int], places: list[float]) -> list[Text]:
    """The counts under the axis, as many as there is room for, the last one always."""
    texts: list[Text] = []
    free = places[-1] - text_width(str(counts[-1]), 11) / 2 - 4
    edge = -1e9
    for at, (count, x) in enumerate(zip(counts, places, strict=True)):
        half = text_width(str(count), 11) / 2
        if at == len(counts) - 1 or (x - half > edge and x + half < free):
            texts.append(Text(x, _TOP + _TALL + 18, str(count), 11, "middle", muted=True))
            edge = x + half + 4
    return texts


def _nice(value: float) -> float:
    """The next of 1, 1.2, 1.6, 2, 3, 4, 6, 8 times a power of ten that is at least ``value``."""
    power = 1e-9
    while power * 10 < value:
        power *= 10
    return next(power * step for step in (1, 1.2, 1.6, 2, 3, 4, 6, 8, 10, 12) if power * step >= value)
