"""The picture of memory: a lane for each GPU, stacked by what the bytes are for."""

from __future__ import annotations

from dataclasses import replace

from ...base.language import say
from ...base.units import bytes_text
from ...plans.footprint import KINDS, Footprints
from ..captions import caption
from ..layout import devices, gpu_lanes, legend, text_width
from ..picture import WIDTH, Box, Line, Picture, Sketch, Text

_LEFT, _RIGHT, _TOP = 76, 172, 50
_SWATCH, _SWATCHES = 28, 4
# Kinds are told apart by how pale they are, in the order of KINDS, and one of the palest by its strokes.
_PALE = (0.0, 0.3, 0.5, 0.67, 0.82)
_HATCHED = "gradients"


def memory_picture(memory: Footprints) -> Picture:
    """The bytes on each GPU; a byte is equally wide on all of them."""
    shown, lane = gpu_lanes(len(memory.gpus), _TOP, _LEFT, _RIGHT)
    scale = lane.across / max([found.total for found in memory.gpus] + [memory.capacity or 0, 1])
    names = {kind: caption(kind) for kind in KINDS}
    limit = -99.0 if memory.capacity is None else _LEFT + memory.capacity * scale
    sketch, too_much = Sketch(), set(memory.over)
    looks, gpus = list(zip(KINDS, _PALE, strict=True)), [gpu for gpu in shown if isinstance(gpu, int)]
    marks = [(names[kind], _swatch(f"legend {kind}", tint, gpus)) for kind, tint in looks]
    sketch.add(*legend(_LEFT, 23, marks, mark=_SWATCH + 5, gap=14))
    fine = min(lane.size, 11.5)
    for at, gpu in lane.one_by_one(sketch, shown, lambda gpus: _counted(memory, gpus)):
        found, x = memory.gpus[gpu], float(_LEFT)
        sketch.add(lane.name(at, f"cuda:{gpu}", muted=not found.total))
        for kind, tint in looks:
            held = getattr(found, kind)
            if not held:
                continue
            width = held * scale
            tip = f"cuda:{gpu} · {names[kind]} · {bytes_text(held)}"
            bar = lane.bar(at, x, width, gpu, tint=tint, label=f"cuda:{gpu} {kind}", tip=tip)
            sketch.add(replace(bar, hatched=kind == _HATCHED))
            half, middle = text_width(names[kind], fine) / 2, x + width / 2
            crossed = abs(middle - limit) < half + 3
            if lane.high >= 15 and 2 * half + 6 <= width and not crossed and kind != _HATCHED:
                sketch.add(Text(middle, lane.line(at), names[kind], fine, "middle", gpu=gpu, tint=tint))
            x += width
        over = gpu in too_much
        note = _bytes(found.total) + say(en=", too much", zh="，超出") * over
        sketch.add(lane.note(at, note, bold=over, muted=not found.total))
    height = lane.y(len(shown)) + 30
    if memory.capacity is not None:
        sketch.add(Line(limit, _TOP - 6, limit, height - 26, dashed=True, strong=True, over=True))
        size = bytes_text(memory.capacity)
        words = say(en=f"capacity {size}", zh=f"显存容量 {size}")
        half = text_width(words, 11) / 2
        sketch.add(Text(min(max(limit, half + 4), WIDTH - half - 4), height - 10, words, 11, "middle"))
    return sketch.picture(height, _description(memory))


def _swatch(label: str, tint: float, gpus: list[int]) -> list[Box]:
    """The look of a kind on each of the first GPUs, side by side."""
    first = gpus[:_SWATCHES]
    width, hatched, places = _SWATCH / max(len(first), 1), label.endswith(_HATCHED), enumerate(first)
    return [Box(at * width, 12, width, 14, gpu, label, tint=tint, hatched=hatched) for at, gpu in places]


def _description(memory: Footprints) -> str:
    home, *others = (found.total for found in memory.gpus)
    text = say(en=f"cuda:0 holds {bytes_text(home)}", zh=f"cuda:0 占用 {bytes_text(home)}")
    if others:
        most = bytes_text(max(others))
        text += say(en=f", every other GPU at most {most}", zh=f"，其余 GPU 最多各占 {most}")
    if over := len(memory.over):
        text += caption("memory", "over", over=over, gpus=len(memory.gpus))
    return text + say(en=".", zh="。")


def _bytes(count: int) -> str:
    return bytes_text(count) if count else say(en="nothing", zh="无")


def _counted(memory: Footprints, gpus: range) -> str:
    """A line about GPUs that are not drawn one by one."""
    most = _bytes(max(memory.gpus[gpu].total for gpu in gpus))
    words = caption("memory", "more", where=devices(gpus), gpus=len(gpus), most=most)
    over = len(set(gpus) & set(memory.over))
    return words + say(en=f", {over} too much", zh=f"，其中 {over} 块超出") * bool(over)
