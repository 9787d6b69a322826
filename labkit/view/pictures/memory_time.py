"""The picture of memory over time: a lane for each rank, as high as the bytes in use on its GPU."""

from __future__ import annotations

from dataclasses import replace

from ...base.language import say
from ...base.units import bytes_text, duration
from ...trace.memory import MemorySample, MemoryTimeline
from ..captions import caption
from ..layout import MOST_LANES, TimeAxis, lanes, legend, shortened
from ..palette import CPU, number
from ..picture import Box, Line, Picture, Sketch, Text

_LEFT, _RIGHT, _TOP = 76, 118, 44
_HEIGHTS = ((4, 52, 13.0, 3.0), (8, 38, 12.5, 3.0), (16, 26, 11.5, 2.0), (32, 17, 10.5, 1.5))
_PALE = 0.6
# The most that are drawn of one rank (which leaves two pixels for each), and of all together.
_MOST, _MOST_BOXES = 240, 1800


def memory_time_picture(memory: MemoryTimeline) -> Picture:
    """The bytes that each rank had in use, over time; a byte is equally high on all, and each one's peak is marked."""
    ranks = memory.ranks
    shown = shortened(len(ranks), most=MOST_LANES, head=40, tail=4)
    lane = lanes(len(shown), _TOP, _LEFT, _RIGHT, _HEIGHTS, pad=1.0)
    drawn = [ranks[at] for at in shown if isinstance(at, int)]
    samples = {rank: memory.of(rank) for rank in drawn}
    first = min((one.at for one in memory.samples), default=0.0)
    last = max(max((one.at for one in memory.samples), default=0.0), first + 1e-6)
    time = TimeAxis(lane, first, last)
    most = max([one.peak for one in memory.samples], default=0) or 1
    bottom = lane.y(max(len(shown), 1)) + 4
    sketch = Sketch()
    sketch.add(*time.marks(bottom))
    limit = max(min(_MOST, _MOST_BOXES // (2 * max(len(drawn), 1))) - 2, 2)
    for place, at in lane.one_by_one(sketch, shown, lambda rest: _left_out(memory, [ranks[k] for k in rest])):
        sketch.add(lane.name(place, f"rank {ranks[at]}"))
        found = _together(samples[ranks[at]], time.seconds / limit)
        sketch.add(*_lane(time, place, found, most))
    if not ranks:
        words = say(en="nothing recorded", zh="没有记录")
        sketch.add(Text(_LEFT, _TOP + lane.high * 0.7, words, 13, muted=True))
    sketch.add(*_legend(samples))
    return sketch.picture(bottom + 30, _description(memory, time.seconds))


def _lane(time: TimeAxis, place: int, found: list[MemorySample], most: int) -> list[Box | Line | Text]:
    """One rank's lane: from sample to sample the bytes in use, over them those that came and went; and its peak."""
    shapes: list[Box | Line | Text] = []
    lane = time.lanes
    floor, tall = lane.y(place) + lane.high - lane.pad, lane.high - 2 * lane.pad - 2
    top = max(found, key=lambda one: one.peak)
    marked = None
    for before, after in zip([found[0], *found], found, strict=False):
        left, width = time.x(before.at), max(time.x(after.at) - time.x(before.at), 0.0)
        kept, peak = before.nbytes / most * tall, after.peak / most * tall
        gpu, rank = number(after.device), after.rank
        tip = _tip(after)
        if width:
            if after.peak > before.nbytes:
                label = f"rank {rank} came and went"
                shapes.append(Box(left, floor - peak, width, peak - kept, gpu, label, tint=_PALE, tip=tip))
            if before.nbytes:
                shapes.append(Box(left, floor - kept, width, kept, gpu, f"rank {rank} in use", tip=tip))
        if after is top and marked is None:
            marked = left + width / 2, floor - peak
    if marked is not None:
        at, y = marked
        mark = 7.0 if lane.high >= 20 else 5.0
        left = min(max(at - mark / 2, _LEFT), _LEFT + lane.across - mark)
        label = f"rank {top.rank} at its peak"
        shapes.append(Box(left, y - mark / 2, mark, mark, CPU, label, round=True, tip=_tip(top)))
    return [*shapes, lane.note(place, bytes_text(top.peak))]


def _together(samples: tuple[MemorySample, ...], apart: float) -> list[MemorySample]:
    """``samples``, those as one that are less than ``apart`` seconds from the one before: what is in use at the last
    of them, and the highest of their peaks.
    """
    found, parts = [samples[0]], samples[1:]
    peak = 0
    for sample in parts:
        peak = max(peak, sample.peak)
        if sample.at - found[-1].at >= apart or sample is parts[-1]:
            found.append(replace(sample, peak=peak))
            peak = 0
    return found


def _legend(samples: dict[int, tuple[MemorySample, ...]]) -> list[Box | Line | Text]:
    gpu = next((number(found[0].device) for found in samples.values() if found), 0)
    return legend(
        _LEFT, 21,
        [
            (say(en="in use", zh="占用"), [Box(0, 11, 18, 13, gpu, "legend")]),
            (say(en="came and went", zh="期间最高"), [Box(0, 11, 18, 13, gpu, "legend", tint=_PALE)]),
            (say(en="peak", zh="峰值"), [Box(5, 13, 8, 8, CPU, "legend", round=True)]),
        ],
        mark=24, gap=18,
    )  # fmt: skip


def _tip(sample: MemorySample) -> str:
    words = [f"rank {sample.rank}", sample.device, *([sample.label] if sample.label else [])]
    now, most = bytes_text(sample.nbytes), bytes_text(sample.peak)
    words.append(say(en=f"{now} in use, up to {most} before", zh=f"占用 {now}，此前最高 {most}"))
    return " · ".join(words)


def _left_out(memory: MemoryTimeline, ranks: list[int]) -> str:
    most = bytes_text(max(memory.peak(rank) for rank in ranks))
    return caption("memory", "more-ranks", first=ranks[0], last=ranks[-1], ranks=len(ranks), most=most)


def _description(memory: MemoryTimeline, seconds: float) -> str:
    if not memory.samples:
        return say(en="Nothing was recorded.", zh="没有记录到任何数据。")
    top = max(memory.samples, key=lambda one: one.peak)
    low = min(memory.ranks, key=memory.peak)
    time, peak = duration(seconds), bytes_text(top.peak)
    text = caption("memory", "time", ranks=len(memory.ranks), time=time, top=top, peak=peak)
    if top.label:
        text += say(en=f" ({top.label})", zh=f"（{top.label}）")
    if len(memory.ranks) > 1:
        least = bytes_text(memory.peak(low))
        text += say(en=f"; rank {low} the lowest, {least}", zh=f"；rank {low} 的最低，{least}")
    return text + say(en=".", zh="。")
