"""The picture of memory over time: a lane for each rank or GPU, as high as the bytes in use."""

from __future__ import annotations

from dataclasses import replace

from ...base.language import say
from ...base.units import bytes_text, duration
from ...trace.memory import MemorySample, MemoryTimeline
from ..captions import caption
from ..layout import MOST_LANES, TimeAxis, choose_shown, lanes, legend
from ..palette import CPU, number
from ..picture import Box, Label, Line, Picture, Sketch

_LEFT, _RIGHT, _TOP = 76, 118, 44
_HEIGHTS = ((4, 52, 13.0, 3.0), (8, 38, 12.5, 3.0), (16, 26, 11.5, 2.0), (32, 17, 10.5, 1.5))
_PALE = 0.6
# The most samples drawn of a rank (two pixels each), and the most boxes of all.
_MOST, _MOST_BOXES = 240, 1800
# The most training steps marked.
_MOST_STEPS = 60


def memory_time_picture(memory: MemoryTimeline) -> Picture:
    """Draw the bytes in use on each rank or GPU over time, at one scale, with each peak marked."""
    names = list(memory.lanes)
    shown = choose_shown(len(names), most=MOST_LANES, head=40, tail=4)
    lane = lanes(len(shown), _TOP, _LEFT, _RIGHT, _HEIGHTS, pad=1.0)
    shown_names = [names[at] for at in shown if isinstance(at, int)]
    samples = {name: memory.lane_samples(memory.lanes[name]) for name in shown_names}
    first = min((one.at for one in memory.samples), default=0.0)
    last = max(max((one.at for one in memory.samples), default=0.0), first + 1e-6)
    time = TimeAxis(lane, first, last)
    most = max([one.peak for one in memory.samples], default=0) or 1
    bottom = lane.y(max(len(shown), 1)) + 4
    sketch = Sketch()
    sketch.add(*time.marks(bottom))
    limit = max(min(_MOST, _MOST_BOXES // (2 * max(len(shown_names), 1))) - 2, 2)
    if 1 < len(memory.steps) <= _MOST_STEPS:
        sketch.add(*(Line(time.x(at), _TOP - 4, time.x(at), bottom, dashed=True) for at in memory.steps))
    for place, at in lane.iterate_shown(
        sketch, shown, lambda rest: _describe_rest(memory, [names[k] for k in rest])
    ):
        sketch.add(lane.name(place, names[at]))
        found = _merge_samples(samples[names[at]], time.seconds / limit)
        sketch.add(*_lane(time, place, names[at], found, most))
    if not names:
        words = say(en="nothing recorded", zh="没有记录")
        sketch.add(Label(_LEFT, _TOP + lane.high * 0.7, words, 13, muted=True))
    sketch.add(*_legend(samples))
    return sketch.picture(bottom + 30, _description(memory, time.seconds))


def _lane(
    time: TimeAxis, place: int, name: str, found: list[MemorySample], most: int
) -> list[Box | Line | Label]:
    """Draw a lane: the bytes in use between samples, above them temporary bytes, and the peak."""
    shapes: list[Box | Line | Label] = []
    lane = time.lanes
    floor, tall = lane.y(place) + lane.high - lane.pad, lane.high - 2 * lane.pad - 2
    top = max(found, key=lambda one: one.peak)
    marked = None
    for before, after in zip([found[0], *found], found, strict=False):
        left, width = time.x(before.at), max(time.x(after.at) - time.x(before.at), 0.0)
        kept, peak = before.nbytes / most * tall, after.peak / most * tall
        gpu = number(after.device)
        tip = _tip(after)
        if width:
            if after.peak > before.nbytes:
                label = f"{name} temporary"
                shapes.append(Box(left, floor - peak, width, peak - kept, gpu, label, tint=_PALE, tip=tip))
            if before.nbytes:
                shapes.append(Box(left, floor - kept, width, kept, gpu, f"{name} in use", tip=tip))
        if after is top and marked is None:
            marked = left + width / 2, floor - peak
    if marked is not None:
        at, y = marked
        mark = 7.0 if lane.high >= 20 else 5.0
        left = min(max(at - mark / 2, _LEFT), _LEFT + lane.width - mark)
        label = f"{name} at its peak"
        shapes.append(Box(left, y - mark / 2, mark, mark, CPU, label, round=True, tip=_tip(top)))
    return [*shapes, lane.note(place, bytes_text(top.peak))]


def _merge_samples(samples: tuple[MemorySample, ...], apart: float) -> list[MemorySample]:
    """Merge samples less than ``apart`` seconds apart: the last one's bytes, the highest peak."""
    found, parts = [samples[0]], samples[1:]
    peak = 0
    for sample in parts:
        peak = max(peak, sample.peak)
        if sample.at - found[-1].at >= apart or sample is parts[-1]:
            found.append(replace(sample, peak=peak))
            peak = 0
    return found


def _legend(samples: dict[str, tuple[MemorySample, ...]]) -> list[Box | Line | Label]:
    gpu = next((number(found[0].device) for found in samples.values() if found), 0)
    return legend(
        _LEFT, 21,
        [
            (say(en="in use", zh="占用"), [Box(0, 11, 18, 13, gpu, "legend")]),
            (say(en="temporary", zh="期间最高"), [Box(0, 11, 18, 13, gpu, "legend", tint=_PALE)]),
            (say(en="peak", zh="峰值"), [Box(5, 13, 8, 8, CPU, "legend", round=True)]),
        ],
        text_offset=24, gap=18,
    )  # fmt: skip


def _tip(sample: MemorySample) -> str:
    rank = "" if sample.rank is None else f"rank {sample.rank}"
    words = list(filter(None, (rank, sample.device, sample.label, sample.line)))
    now, most = bytes_text(sample.nbytes), bytes_text(sample.peak)
    words.append(say(en=f"{now} in use, up to {most} before", zh=f"占用 {now}，此前最高 {most}"))
    return " · ".join(words)


def _describe_rest(memory: MemoryTimeline, names: list[str]) -> str:
    lanes = [memory.lanes[name] for name in names]
    facts = {"first": lanes[0], "last": lanes[-1], "most": bytes_text(max(map(memory.peak, lanes)))}
    if memory.ranks:
        return caption("memory", "more-ranks", ranks=len(lanes), **facts)
    return caption("memory", "more-gpus", gpus=len(lanes), **facts)


def _description(memory: MemoryTimeline, seconds: float) -> str:
    if not memory.samples:
        return say(en="Nothing was recorded.", zh="没有记录到任何数据。")
    top = max(memory.samples, key=lambda one: one.peak)
    names = memory.lanes
    low = min(names, key=lambda name: memory.peak(names[name]))
    facts = {"time": duration(seconds), "top": top, "peak": bytes_text(top.peak)}
    if memory.ranks:
        text = caption("memory", "time", ranks=len(names), **facts)
    else:
        text = caption("memory", "time", "gpus", gpus=len(names), **facts)
    if top.label:
        text += say(en=f" ({top.label})", zh=f"（{top.label}）")
    if len(names) > 1:
        least = bytes_text(memory.peak(names[low]))
        text += say(en=f"; {low} the lowest, {least}", zh=f"；{low} 的最低，{least}")
    return text + say(en=".", zh="。")
