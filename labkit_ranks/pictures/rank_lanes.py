"""Draw ranks in time: a lane for each, with computing, waiting and collectives; and the page of a trace."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from labkit.base.language import say
from labkit.base.numbers import plural
from labkit.base.units import bytes_text, duration
from labkit.trace.events import PAIRS, Event, Meeting
from labkit.trace.trace import Trace
from labkit.view.layout import MOST_LANES, Lanes, TimeAxis, choose_shown, fit_size, lanes, legend, text_width
from labkit.view.palette import CPU, number
from labkit.view.picture import WIDTH, Box, Label, Line, Picture, Sketch
from labkit.view.picture_registry import Chapter
from labkit.view.pictures.memory_time import memory_time_picture

from .captions import caption
from .rank_times import (
    RankTimes,
    Span,
    abbreviate_ranks,
    families_of,
    family_name,
    first_and_last,
    members,
    purpose,
    rank_times,
)
from .wait_graphs import waited_picture

_LEFT, _RIGHT = 76, 62
# Lanes are higher than those of devices: in each are two bands.
_HEIGHTS = ((4, 44, 13.0, 3.0), (8, 34, 12.5, 3.0), (16, 24, 11.5, 2.0), (32, 16, 10.5, 1.5))
# The share of a lane for collectives; the rest shows computing and waiting.
_MEETINGS = 0.42
# Groups in more tiers of a lane than this share the last.
_MOST_TIERS = 4
# The least height of a lane with the text "waits for rank …" of a stuck rank.
_NAMED = 24
# The least width of a collective, in pixels.
_LEAST = 3.0
# With more meetings or boxes than these, the picture adds up what happens in each slot of time.
_MOST_MEETINGS, _MOST_BOXES = 150, 1900
# The page shows this many of the first and of the last collectives enlarged.
_CLOSE = 24
# The most slots, and the steps to which shares of a slot are rounded, so that equal neighbours become one box.
_MOST_SLOTS, _STEPS = 150, 20


def ranks_picture(trace: Trace) -> Picture:
    """Draw the ranks in time: computing, waiting for the last rank, communicating."""
    meetings, times = trace.meetings(), rank_times(trace)
    shown = choose_shown(len(times), most=MOST_LANES, head=40, tail=4)
    families = families_of(meetings)
    first, last = first_and_last(trace)
    top = 66.0 if len(families) > 1 else 50.0
    lane = lanes(len(shown), top, _LEFT, _RIGHT, _HEIGHTS, pad=1.0)
    time = TimeAxis(lane, first, last)
    bottom = lane.y(len(shown)) + 4
    sketch = Sketch()
    sketch.add(*time.marks(bottom))
    paint = _LanePainter(sketch, time, families)
    lane_of = {times[at].rank: place for place, at in enumerate(shown) if isinstance(at, int)}
    seen = [one for one in times if one.rank in lane_of]
    boxes = sum(len(one.computing) + len(one.waiting) + 2 * len(one.parts) for one in seen)
    slot = 0.0
    if len(meetings) > _MOST_MEETINGS or boxes > _MOST_BOXES:
        slot = time.seconds / min(max(_MOST_BOXES // (3 * len(lane_of)), 1), _MOST_SLOTS)
    else:
        paint.links(meetings, lane_of)
        sketch.add(*_kind_labels(paint, meetings, top))

    def label_rest(rest: Sequence[int]) -> str:
        return caption("ranks", "more", first=times[rest[0]].rank, last=times[rest[-1]].rank, count=len(rest))

    for place, at in lane.iterate_shown(sketch, shown, label_rest):
        one = times[at]
        sketch.add(*_name(lane, place, one))
        stuck, share = say(en="stuck", zh="卡住"), f"{one.waited_seconds / time.seconds:.0%}"
        sketch.add(lane.note(place, share if one.stuck is None else stuck, muted=True))
        if slot:
            paint.added_up(place, one, slot)
        else:
            paint.rank(place, one)
        if one.stuck is not None and lane.high >= _NAMED:
            words = _name_missing(one.stuck.ranks)
            x, y = _LEFT + lane.width - 4, paint.band(place)[0] - 3
            room = x - time.x(one.waiting[-1].start) - 6  # right of the last collective
            size = max(fit_size(words, room, min(lane.size, 11)), 9)
            sketch.add(Label(x, y, words, size, "end"))
    title = say(en="waiting", zh="等待")
    sketch.add(Label(WIDTH - _RIGHT + 8, top - 6, title, fit_size(title, _RIGHT - 10, 11), muted=True))
    sketch.add(*_legend(times, meetings, families, slot))
    return sketch.picture(bottom + 30, _description(trace, meetings, times, time.seconds))


def _name_missing(ranks: Sequence[int]) -> str:
    """``waits for ranks 0, 1``."""
    return caption("ranks", "stuck", ranks=abbreviate_ranks(ranks), s="s" if len(ranks) > 1 else "")


@dataclass(frozen=True)
class _LanePainter:
    """A painter of ranks' lanes along ``time``, with a tier in each lane for each of ``families``."""

    sketch: Sketch
    time: TimeAxis
    families: list[list[tuple[int, ...]]]

    @property
    def lane(self) -> Lanes:
        return self.time.lanes

    def span(self, start: float, stop: float, least: float = 0.0) -> tuple[float, float]:
        """Return left edge and width inside the lane; the width is at least ``least`` pixels."""
        width = max((stop - start) * self.time.scale, least)
        return min(self.time.x(start), _LEFT + self.lane.width - width), width

    def band(self, place: int, ranks: tuple[int, ...] | None = None) -> tuple[float, float]:
        """Return upper edge and height of the computing band of a lane, or of a group's collectives."""
        top, tall = self.lane.y(place) + self.lane.pad, self.lane.high - 2 * self.lane.pad
        high = tall * _MEETINGS
        if ranks is None:
            return top + high, tall - high
        tiers = max(min(len(self.families), _MOST_TIERS), 1)
        tier = next((at for at, family in enumerate(self.families) if ranks in family), 0)
        return top + min(tier, tiers - 1) * high / tiers, high / tiers - (0.5 if tiers > 1 else 0.0)

    def extent(self, place: int, part: Event) -> tuple[float, float]:
        """Return upper edge and height of a collective: the whole lane if nothing overlaps it."""
        if len(self.families) < 2 and not part.async_op:
            return self.lane.y(place) + self.lane.pad, self.lane.high - 2 * self.lane.pad
        return self.band(place, members(part))

    def rank(self, place: int, one: RankTimes) -> None:
        """Draw one rank's lane."""
        y, tall = self.band(place)
        gpu = number(one.device)
        for span in one.computing:
            x, width = self.span(span.start, span.stop)
            tip = f"rank {one.rank} · " + say(en="computing", zh="计算") + f" · {duration(span.seconds)}"
            self.sketch.add(Box(x, y, width, tall, gpu, f"rank {one.rank} computing", tip=tip))
        for span in one.waiting:
            x, width = self.span(span.start, span.stop)
            assert span.of is not None
            label, tip = f"rank {one.rank} waiting", _collective_tip(span.of)
            self.sketch.add(Box(x, y, width, tall, label=label, tip=tip, hatched=True))
        for part, met in one.parts:
            self.part(place, part, met)

    def part(self, place: int, part: Event, met: Span) -> None:
        """Draw a collective from the time when all ranks had come, and the time since an asynchronous call."""
        y, tall = self.band(place, members(part))
        if part.async_op and met.start > part.start:
            x, width = self.span(part.start, met.start)
            label = f"rank {part.rank} called {part.name}"
            self.sketch.add(Box(x, y, width, tall, label=label, tip=_collective_tip(part)))
        y, tall = self.extent(place, part)
        x, width = self.span(met.start, met.stop, _LEAST)
        label = f"rank {part.rank} {part.name} {part.sequence}"
        self.sketch.add(Box(x, y, width, tall, CPU, label, tip=_collective_tip(part)))

    def links(self, meetings: Sequence[Meeting], lane_of: dict[int, int]) -> None:
        """Draw a line through all members of a collective, and an arrow from sender to receiver."""
        for meeting in meetings:
            parts = [part for part in meeting.parts if part.rank in lane_of]
            if len(parts) < 2:
                continue
            if meeting.kind in PAIRS:
                self.arrow(meeting, lane_of)
                continue
            places = [lane_of[part.rank] for part in parts if part.rank is not None]
            x = min(self.time.x(meeting.last_arrival) + _LEAST / 2, _LEFT + self.lane.width - _LEAST / 2)
            ys = [y + tall / 2 for y, tall in (self.band(place, members(parts[0])) for place in places)]
            self.sketch.add(Line(x, min(ys), x, max(ys)))

    def arrow(self, meeting: Meeting, lane_of: dict[int, int]) -> None:
        """Draw an arrow from the call of the send to the time when the message was received."""
        send, recv = (next((p for p in meeting.parts if p.name == name), None) for name in PAIRS)
        if send is None or recv is None or send.rank is None or recv.rank is None:
            return
        down = lane_of[send.rank] < lane_of[recv.rank]
        y1, tall1 = self.extent(lane_of[send.rank], send)
        y2, tall2 = self.extent(lane_of[recv.rank], recv)
        x1, _ = self.span(send.start, send.start, _LEAST)
        x2, _ = self.span(meeting.last_arrival, meeting.last_arrival, _LEAST)
        half = _LEAST / 2
        ends = x1 + half, y1 + tall1 * down, x2 + half, y2 + tall2 * (not down)
        self.sketch.add(Line(*ends, arrow=True, over=True))

    def added_up(self, place: int, one: RankTimes, slot: float) -> None:
        """Draw a rank's lane in slots: the shares of computing and waiting, and whether there were collectives."""
        y, tall = self.band(place)
        count = round(self.lane.width / (slot * self.time.scale))
        shares = [
            [round(seconds / slot * _STEPS) for seconds in _by_slot(spans, self.time.first, slot, count)]
            for spans in (one.computing, one.waiting)
        ]
        for run, (busy, still) in _runs(list(zip(*shares, strict=True))):
            start, stop = (self.time.first + at * slot for at in (run.start, run.stop))
            x, width = self.span(start, stop)
            begin, end = (duration(at - self.time.first) for at in (start, stop))
            tip = f"rank {one.rank} · {begin} – {end} · "
            tip += caption("ranks", "share", busy=busy / _STEPS, still=still / _STEPS)
            high, above = tall * busy / _STEPS, tall * min(still, _STEPS - busy) / _STEPS
            if busy:
                gpu, label = number(one.device), f"rank {one.rank} computing"
                self.sketch.add(Box(x, y + tall - high, width, high, gpu, label, tip=tip))
            if above:
                label, at = f"rank {one.rank} waiting", y + tall - high - above
                self.sketch.add(Box(x, at, width, above, label=label, tip=tip, hatched=True))
        for ranks in dict.fromkeys(members(part) for part, _ in one.parts):
            met = [0] * count
            for part, span in one.parts:
                if members(part) == ranks:
                    met[min(int((span.start - self.time.first) / slot), count - 1)] += 1
            above, high = self.band(place, ranks)
            for run, (some,) in _runs([(bool(many),) for many in met]):
                if some:
                    many, begun = sum(met[run.start : run.stop]), self.time.first
                    x, width = self.span(begun + run.start * slot, begun + run.stop * slot)
                    tip = f"rank {one.rank} · " + say(en=plural(many, "collective"), zh=f"集合通信 {many} 次")
                    self.sketch.add(Box(x, above, width, high, CPU, f"rank {one.rank} met ×{many}", tip=tip))


def _runs(values: list[tuple[int, ...]]) -> Iterable[tuple[range, tuple[int, ...]]]:
    """Yield runs of equal neighbours as a range and the value."""
    for value, run in groupby(range(len(values)), values.__getitem__):
        places = [*run]
        yield range(places[0], places[-1] + 1), value


def _by_slot(spans: Iterable[Span], first: float, slot: float, count: int) -> list[float]:
    """Return the seconds of ``spans`` in each of ``count`` slots."""
    found = [0.0] * count
    for span in spans:
        at = max(min(int((span.start - first) / slot), count - 1), 0)
        while at < count and first + at * slot < span.stop:
            inside = min(span.stop, first + (at + 1) * slot) - max(span.start, first + at * slot)
            found[at] += max(inside, 0.0)
            at += 1
    return [min(seconds, slot) for seconds in found]


def _name(lane: Lanes, place: int, one: RankTimes) -> list[Label]:
    """Return the labels of a lane: the rank, and below the GPU if there is room."""
    text = lane.name(place, f"rank {one.rank}")
    if lane.high < 30:
        return [text]
    return [
        replace(text, y=text.y - 6),
        Label(text.x, text.y + 8, one.device, min(lane.size - 2, 11), "end", muted=True),
    ]


def _kind_labels(paint: _LanePainter, meetings: Iterable[Meeting], top: float) -> list[Label]:
    """Return labels above the lanes with the kinds of collectives, leaving out those that would overlap."""
    found, free = [], float("-inf")
    for meeting in meetings:
        half = text_width(meeting.kind, 10) / 2
        x = max(paint.time.x(meeting.last_arrival) + _LEAST / 2, _LEFT + half)
        if x - half > free and x + half <= WIDTH - _RIGHT:
            found.append(Label(x, top - 7, meeting.kind, 10, "middle", muted=True))
            free = x + half + 8
    return found


def _collective_tip(part: Event) -> str:
    """Return the tooltip of a rank's part in a collective."""
    words = [f"rank {part.rank}", part.name + (f" {part.sequence}" if part.sequence is not None else "")]
    if part.name in PAIRS and part.phase != "stuck":
        words.append(f"rank {part.ranks[0]} → rank {part.ranks[-1]}")
    elif part.phase == "stuck":
        words.append(_name_missing(part.ranks))
    elif part.ranks:
        words.append(say(en="ranks ", zh="rank ") + abbreviate_ranks(part.ranks))
    if part.nbytes:
        words.append(bytes_text(part.nbytes))
    if part.waited:
        late, waited = f"rank {part.last}", duration(part.waited)
        words.append(say(en=f"waited {waited} for {late}", zh=f"等 {late} 等了 {waited}"))
    return " · ".join([*words, *([part.place] if part.place else [])])


def _legend(
    times: list[RankTimes], meetings: Sequence[Meeting], families: list[list[tuple[int, ...]]], slot: float
) -> list[Box | Line | Label]:
    """Return the legend: the kinds of boxes, and below the tier of each family of groups."""
    gpu = number(times[0].device) if times else 0
    late = any(e.async_op and met.start > e.start for one in times for e, met in one.parts) and not slot
    marks: list[tuple[str, list[Box | Line]]] = [
        (say(en="computing", zh="计算"), [Box(0, 11, 18, 13, gpu, "legend")]),
        (caption("ranks", "waiting"), [Box(0, 11, 18, 13, label="legend", hatched=True)]),
        (say(en="communicating", zh="通信"), [Box(0, 11, 18, 8, CPU, "legend")]),
    ]
    if late:
        words = say(en="called, not all there", zh="已发起，还没到齐")
        marks.append((words, [Box(0, 11, 18, 8, label="legend")]))
    if slot:
        each = duration(slot)
        marks.append((say(en=f"({each} added up)", zh=f"（每 {each} 合计）"), []))
    found = legend(_LEFT, 21, marks, text_offset=24, gap=18)
    if len(families) > 1:
        count = min(len(families), _MOST_TIERS)
        marks = []
        for at, family in enumerate(families[:count]):
            lane, high = Box(0, 29, 18, 14, label="legend"), 14 / count
            tier = Box(0, 29 + at * high, 18, high, CPU, "legend")
            name = family_name(family, len(times)) + purpose(family, meetings)
            marks.append((name, [lane, tier]))
        # Small enough to stand side by side.
        wanted, room = sum(text_width(words, 11) for words, _ in marks), WIDTH - _LEFT - 8 - count * 38
        found += legend(_LEFT, 40, marks, text_offset=24, gap=14, size=11 * min(1.0, room / wanted))
    return found


def _description(trace: Trace, meetings: Sequence[Meeting], times: list[RankTimes], seconds: float) -> str:
    kinds: dict[str, int] = {}
    late: dict[int, int] = {}
    for meeting in meetings:
        kinds[meeting.kind] = kinds.get(meeting.kind, 0) + 1
        if meeting.last is not None and any(part.waited for part in meeting.parts):
            late[meeting.last] = late.get(meeting.last, 0) + 1
    counted = ", ".join(f"{kind} × {count}" for kind, count in list(kinds.items())[:6])
    text = caption("ranks", ranks=len(times), time=duration(seconds), meetings=len(meetings))
    if counted:
        text += say(en=f" ({counted})", zh=f"（{counted}）")
    if late:
        rank = max(late, key=lambda rank: late[rank])
        most = max(times, key=lambda one: one.waited_seconds)
        facts = {"rank": rank, "late": late[rank], "most": most.rank, "share": most.waited_seconds / seconds}
        text += caption("ranks", "late", **facts)
    return text + say(en=".", zh="。")


def chapters(trace: Trace) -> Iterator[Chapter]:
    """Yield the pictures of a trace's page: the whole, beginning and end enlarged, waits, and memory."""
    yield say(en="The whole run", zh="整个运行过程"), ranks_picture(trace), repr(trace)
    meetings = trace.meetings()
    if len(meetings) > 2 * _CLOSE:
        first = trace.in_window(float("-inf"), meetings[_CLOSE - 1].stop)
        last = trace.in_window(meetings[-_CLOSE].last_arrival, float("inf"))
        yield caption("page", "first-collectives", count=_CLOSE), ranks_picture(first), ""
        yield caption("page", "last-collectives", count=_CLOSE), ranks_picture(last), ""
    if len(trace.ranks) > 1:
        yield say(en="Who waited for whom", zh="谁等了谁"), waited_picture(trace), ""
    if trace.samples:
        yield say(en="Memory", zh="显存"), memory_time_picture(trace.memory), repr(trace.memory)
