"""Draw the memory of one forward and backward over time as a staircase, once for each way to keep."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby

from labkit.base.language import say
from labkit.view.layout import legend
from labkit.view.picture import WIDTH, Box, Label, Line, Picture, Sketch

from ..plans.recompute import Stair, Staircase
from .captions import caption

_LEFT, _RIGHT, _HEAD, _TALL, _GAP = 12, 12, 28, 92, 14
_COLOURS = {"F": 0, "R": 1, "B": 2}
# Those who rest the mouse on a step read what it is.
_KINDS = {"F": ("forward", "前向"), "B": ("backward", "反向"), "R": ("recompute", "重计算")}


def staircases_picture(lanes: Mapping[str, Staircase]) -> Picture:
    """Draw each lane's staircase on common axes, in colours of what runs; hatch recomputation."""
    sketch, top = Sketch(), 0.0
    across = (WIDTH - _LEFT - _RIGHT) / max(found.time for found in lanes.values())
    each = _TALL / max(found.peak for found in lanes.values())
    first = next(iter(lanes.values()))
    for name, found in lanes.items():
        words = caption("staircase", name=name, peak=found.peak, slower=found.time / first.time)
        sketch.add(Label(_LEFT, top + 18, words, 12, bold=True))
        floor = top + _HEAD + _TALL
        sketch.add(Line(_LEFT, floor, WIDTH - _RIGHT, floor, muted=True))
        for kind, start, stop, high, layers in _runs(found):
            x, wide, label = _LEFT + start * across, (stop - start) * across, f"{name} {kind}{layers}"
            tip = f"{say(en=_KINDS[kind][0], zh=_KINDS[kind][1])} {layers}: {high}"
            place = x, floor - high * each, wide, high * each
            sketch.add(Box(*place, _COLOURS[kind], label, hatched=kind == "R", tip=tip))
        top = floor + _GAP
    key = [(say(en=_KINDS[kind][0], zh=_KINDS[kind][1]),
            [Box(0, top, 14, 12, colour, f"legend {kind}", hatched=kind == "R")])
           for kind, colour in _COLOURS.items()]  # fmt: skip
    sketch.add(*legend(_LEFT, top + 10, key, text_offset=20, gap=20))
    axes = say(en="height: memory, width: time", zh="高是显存，宽是时间")
    sketch.add(Label(WIDTH - _RIGHT, top + 10, axes, 11, "end", muted=True))
    *_, best = lanes.values()
    less, longer = 1 - best.peak / first.peak, best.time / first.time - 1
    return sketch.picture(top + 20, caption("staircases", name=[*lanes][-1], less=less, longer=longer))


def _runs(found: Staircase) -> Iterator[tuple[str, float, float, int, str]]:
    """Yield kind, start, stop, height and layers of neighbouring steps of one kind and height."""
    for (kind, high), same in groupby(found.stairs, lambda stair: (stair.kind, stair.high)):
        run: list[Stair] = list(same)
        layers = sorted({run[0].layer, run[-1].layer})
        yield kind, run[0].start, run[-1].stop, high, "–".join(map(str, layers))
