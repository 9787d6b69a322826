"""The picture of scaling: a step's milliseconds and efficiency against the number of GPUs."""

from __future__ import annotations

from itertools import pairwise
from math import log2

from ..base.display import draws
from ..base.language import say
from ..cost import Scaling
from .palette import CPU
from .picture import Box, Line, Picture, Text, text_width
from .svg import to_svg

WIDTH, HEIGHT = 720, 300
_TOP, _TALL = 74, 178
_CHARTS = ((62, 276), (424, 276))  # left edge and width of the two
# No method has a GPU's colour: they are told apart by their lines. (method, dashed, strong, tint of its marks)
_STYLES = (("perfect", True, False, None), ("ddp", False, False, 0.55), ("data_parallel", False, True, 0.0))


def scaling_picture(found: Scaling) -> Picture:
    """Two charts as a :class:`Picture`: milliseconds of a step on the left, efficiency on the right."""
    boxes, texts, lines = _legend()
    seconds = [s * 1e3 for times in found.seconds.values() for s in times if s is not None]
    titles = (
        say(en="ms per training step", zh="每个训练步的毫秒数"), say(en="efficiency", zh="效率"),
    )  # fmt: skip
    for at, (left, across) in enumerate(_CHARTS):
        texts.append(Text(left, _TOP - 18, titles[at], 12, bold=True))
        top = _nice(max(seconds)) if at == 0 else 1.0
        for share in (0, 0.25, 0.5, 0.75, 1):
            y = _TOP + _TALL * (1 - share)
            lines.append(Line(left, y, left + across, y, muted=True))
            words = f"{top * share:.4g}" if at == 0 else f"{share:.0%}"
            texts.append(Text(left - 6, y + 4, words, 11, "end", muted=True))
        places = _places(found.counts, left, across)
        texts += _under(found.counts, places)
        for method, dashed, strong, tint in _STYLES:
            values = found.seconds[method] if at == 0 else found.efficiency(method)
            scale = 1e3 / top if at == 0 else 1.0
            points = [
                (x, _TOP + _TALL * (1 - min(value * scale, 1.0)), count, value)
                for x, count, value in zip(places, found.counts, values, strict=True) if value is not None
            ]  # fmt: skip
            # Perfect scaling is flat; in one stroke its dashes stay whole.
            ends = [points[0], points[-1]] if method == "perfect" else points
            for one, other in pairwise(ends):
                lines.append(Line(*one[:2], *other[:2], dashed=dashed, strong=strong))
            if tint is None:
                continue
            for x, y, count, value in points:
                told = f"{value * 1e3:.4g} ms" if at == 0 else f"{value:.1%}"
                tip = f"{method_names()[method]} · {count} GPU · {told}"
                boxes.append(
                    Box(
                        x - 3,
                        y - 3,
                        6,
                        6,
                        gpu=CPU,
                        tint=tint,
                        label=f"{method} {count} {titles[at]}",
                        tip=tip,
                    )
                )
    texts.append(Text(_CHARTS[0][0], HEIGHT - 10, say(en="GPUs", zh="GPU 数"), 11, muted=True))
    texts.append(Text(WIDTH - 20, HEIGHT - 10, found.hardware, 11, "end", muted=True))
    return Picture(WIDTH, HEIGHT, tuple(boxes), tuple(texts), describe_scaling(found), tuple(lines))


def describe_scaling(found: Scaling) -> str:
    """The prediction for the most GPUs, in one sentence."""
    count, perfect = found.counts[-1], found.seconds["perfect"][-1]
    ddp = found.efficiency("ddp")[-1]
    text = say(
        en=f"{found.rows} row{'s' * (found.rows != 1)} on each of {count} GPU{'s' * (count != 1)}: perfect scaling "
        f"takes {perfect * 1e3:.4g} ms a step; DDP reaches {ddp:.0%} of that throughput",
        zh=f"{count} 块 GPU，每块 {found.rows} 行：理想扩展每个训练步 {perfect * 1e3:.4g} ms；"
        f"DDP 达到其吞吐量的 {ddp:.0%}",
    )
    last = found.efficiency("data_parallel")[-1]
    if last is None:
        text += say(en=", DataParallel cannot leave one machine", zh="，DataParallel 则不能跨机器")
    else:
        text += say(en=f", DataParallel {last:.0%}", zh=f"，DataParallel 达到 {last:.0%}")
    return text + say(en=".", zh="。")


def method_names() -> dict[str, str]:
    """What the methods are called in the language in use."""
    return {
        "perfect": say(en="perfect scaling", zh="理想扩展"),
        "ddp": "DistributedDataParallel",
        "data_parallel": "DataParallel",
    }


@draws(Scaling)
def scaling_svg(found: Scaling) -> str:
    """The scaling as SVG text, on a panel of its own so that it reads on any background."""
    return to_svg(scaling_picture(found), panel=True)


def draw_scaling(found: Scaling, *, ax=None):
    """Draw a prediction of :func:`labkit.cost.scaling`; returns the matplotlib Axes.

    found  seconds of a step for each number of GPUs.
    ax     the Axes to draw into; a new figure if not given.
    """
    if not isinstance(found, Scaling):
        raise TypeError(
            f"found must be what labkit.cost.scaling gives, got {found!r} ({type(found).__name__})"
        )
    from .figure import paint  # matplotlib is only wanted here

    return paint(lambda: scaling_picture(found), ax)


def _legend() -> tuple[list[Box], list[Text], list[Line]]:
    boxes, texts, lines, x = [], [], [], float(_CHARTS[0][0])
    for method, dashed, strong, tint in _STYLES:
        words = method_names()[method]
        lines.append(Line(x, 20, x + 32, 20, dashed=dashed, strong=strong))
        if tint is not None:
            boxes.append(Box(x + 13, 17, 6, 6, gpu=CPU, tint=tint, label=f"legend {method}"))
        texts.append(Text(x + 40, 24, words, 12))
        x += 40 + text_width(words, 12) + 24
    return boxes, texts, lines


def _places(counts: tuple[int, ...], left: float, across: float) -> list[float]:
    """Where the counts stand, each doubling equally far."""
    low, high = log2(min(counts)), log2(max(counts))
    if high == low:
        return [left + across / 2] * len(counts)
    return [left + 10 + (across - 20) * (log2(count) - low) / (high - low) for count in counts]


def _under(counts: tuple[int, ...], places: list[float]) -> list[Text]:
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
