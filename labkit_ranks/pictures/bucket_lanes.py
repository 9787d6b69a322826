"""Draw DDP's buckets: one step with several bucket sizes, computation above and all-reduces below."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from labkit.base.language import say
from labkit.base.units import bytes_text, duration
from labkit.cost import Overlap
from labkit.view.layout import Lanes, TimeAxis, legend
from labkit.view.palette import CPU
from labkit.view.picture import Box, Line, Picture, Sketch

from .captions import caption

_LEFT, _RIGHT, _TOP, _HIGH = 96, 72, 54, 58
_PALE = 0.55


def bucket_picture(ways: Mapping[str, Overlap]) -> Picture:
    """Draw a lane for each named way to form buckets."""
    lane = Lanes(_TOP, _LEFT, _RIGHT, _HIGH, 13, pad=7)
    time = TimeAxis(lane, 0.0, max(step.seconds for step in ways.values()))
    bottom = lane.y(len(ways)) + 2
    sketch = Sketch()
    sketch.add(*time.marks(bottom))
    words = {
        "forward": say(en="forward", zh="前向"), "backward": say(en="backward", zh="反向"),
        "sum": say(en="all-reduce", zh="全归约"),
    }  # fmt: skip
    computing = Box(0, 11, 16, 12, 0, "legend")
    marks = (computing, replace(computing, tint=_PALE), Box(0, 13, 16, 8, CPU))
    entries = [(word, [mark]) for word, mark in zip(words.values(), marks, strict=True)]
    sketch.add(*legend(_LEFT, 21, entries, text_offset=22, gap=22))
    for at, (name, step) in enumerate(ways.items()):
        top, half = lane.y(at) + lane.pad, lane.high / 2 - lane.pad
        for part, start, seconds, tint in (
            ("forward", 0.0, step.forward, 0.0), ("backward", step.forward, step.backward, _PALE),
        ):  # fmt: skip
            x, width = time.x(start), seconds * time.scale
            tip = f"{words[part]} · {duration(seconds)}"
            sketch.add(Box(x, top, width, half, 0, f"{name} {part}", tint=tint, tip=tip))
        for number, (nbytes, start, stop) in enumerate(step.sums, 1):
            width = max((stop - start) * time.scale - 0.5, 0.5)  # a gap tells neighbours apart
            tip = f"{words['sum']} {number} · {bytes_text(nbytes)} · {duration(stop - start)}"
            sketch.add(Box(time.x(start), top + half + 2, width, half, CPU, f"{name} sum {number}", tip=tip))
        end = time.x(step.computing_end)
        sketch.add(Line(end, top, end, top + 2 * half + 2, dashed=True, over=True))
        sketch.add(lane.name(at, name), lane.note(at, duration(step.seconds), bold=True))
    sentences = [
        caption("buckets", name=name, sums=len(step.sums), time=duration(step.seconds),
                late=duration(step.seconds - step.computing_end))
        for name, step in ways.items()
    ]  # fmt: skip
    return sketch.picture(bottom + 24, say(en=";\n", zh="；\n").join(sentences))
