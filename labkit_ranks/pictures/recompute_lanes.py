"""Draw the memory of one forward and backward as a staircase above its lane of time, once for each way to keep."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby

from labkit.base.language import say
from labkit.view.palette import CPU
from labkit.view.picture import WIDTH, Box, Label, Line, Picture, Sketch

from ..plans.recompute import Stair, Staircase
from .captions import caption

_LEFT, _RIGHT, _HEAD, _TALL, _LANE, _GAP = 12, 12, 26, 84, 12, 12
_TINTS = {"F": 0.55, "B": 0.2, "R": 0.75}
# Those who rest the mouse on a step read what it is.
_KINDS = {"F": ("forward", "前向"), "B": ("backward", "反向"), "R": ("recompute", "重计算")}


def staircases_picture(lanes: Mapping[str, Staircase]) -> Picture:
    """Draw each lane's staircase on common axes; hatch recomputation."""
    sketch, top = Sketch(), 0.0
    across = (WIDTH - _LEFT - _RIGHT) / max(found.time for found in lanes.values())
    each = _TALL / max(found.peak for found in lanes.values())
    first = next(iter(lanes.values())).time
    said = [caption("staircase", name=name, peak=found.peak, slower=found.time / first)
            for name, found in lanes.items()]  # fmt: skip
    for (name, found), words in zip(lanes.items(), said, strict=True):
        sketch.add(Label(_LEFT, top + 18, words, 12, bold=True))
        floor = top + _HEAD + _TALL
        sketch.add(Line(_LEFT, floor, WIDTH - _RIGHT, floor, muted=True))
        for kind, start, stop, high, layers in _runs(found):
            x, wide, label = _LEFT + start * across, (stop - start) * across, f"{name} {kind}{layers}"
            tip = f"{say(en=_KINDS[kind][0], zh=_KINDS[kind][1])} {layers}: {high}"
            place = x, floor - high * each, wide, high * each
            sketch.add(Box(*place, CPU, label, tint=_TINTS[kind], hatched=kind == "R", tip=tip))
        for kind, same in groupby(found.stairs, lambda stair: stair.kind):
            run = list(same)
            x, wide = _LEFT + run[0].start * across, (run[-1].stop - run[0].start) * across
            colour = {"F": 0, "B": 2, "R": 1}[kind]
            sketch.add(Box(x, floor + 5, wide, _LANE, colour, f"{name} time {kind}", hatched=kind == "R"))
        top = floor + 5 + _LANE + _GAP
    x = float(_LEFT)
    for kind, colour in (("F", 0), ("R", 1), ("B", 2)):
        words = say(en=_KINDS[kind][0], zh=_KINDS[kind][1])
        sketch.add(Box(x, top, 14, _LANE, colour, f"legend {kind}", hatched=kind == "R"))
        sketch.add(Label(x + 20, top + 10, words, 11))
        x += 110
    axes = say(en="height: memory, width: time", zh="高是显存，宽是时间")
    sketch.add(Label(WIDTH - _RIGHT, top + 10, axes, 11, "end", muted=True))
    return sketch.picture(top + _LANE + 8, say(en="; ", zh="；").join(said))


def _runs(found: Staircase) -> Iterator[tuple[str, float, float, int, str]]:
    """Yield kind, start, stop, height and layers of neighbouring steps of one kind and height."""
    for (kind, high), same in groupby(found.stairs, lambda stair: (stair.kind, stair.high)):
        run: list[Stair] = list(same)
        layers = sorted({run[0].layer, run[-1].layer})
        yield kind, run[0].start, run[-1].stop, high, "–".join(map(str, layers))
