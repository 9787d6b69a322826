"""The picture of a trace in time: a lane for each device, a bar for each event."""

from __future__ import annotations

from dataclasses import replace

from ...base.language import say, series
from ...base.numbers import plural
from ...base.units import duration
from ...trace.events import Event
from ...trace.trace import Trace
from ..captions import caption
from ..layout import BASELINE, MOST_LANES, TimeAxis, choose_shown, lanes, legend, text_width
from ..palette import CPU, number
from ..picture import Box, Label, Line, Picture, Sketch

_LEFT, _RIGHT, _TOP = 76, 36, 54
_PALE = 0.55
# The share of a lane's height for arriving data; computing takes all.
_THIN = 0.55
# The phases with a caption; others are shown by the event's name.
_NAMED = ("replicate", "scatter", "parallel_apply", "gather", "copy")
# The most steps named below the time; bars have tips.
_MOST_STEPS = 12
# The most bars drawn; more are merged by kind.
_MOST_BARS = 2000


def timeline_picture(trace: Trace, moment: float | None = None) -> Picture:
    """Draw a trace in time, with a lane for each device.

    moment   seconds since the recording began, marked by a line across all lanes; None: no line.
    """
    names = trace.devices
    shown = choose_shown(len(names), most=MOST_LANES + 1, head=40, tail=4)  # with the CPU
    lane = lanes(len(shown), _TOP, _LEFT, _RIGHT)
    first, last = _span(trace)
    time = TimeAxis(lane, first, last)
    bottom = lane.y(max(len(shown), 1)) + 4
    shown_devices = {names[at]: at for at in shown if isinstance(at, int)}
    bars, slot = _bars([event for event in trace if event.device in shown_devices], first, last)
    sketch = Sketch()
    if not len(trace):
        sketch.add(Label(16, 32, _description(trace, moment), 13, muted=True))
        return sketch.picture(50, _description(trace, moment))
    sketch.add(*_legend(slot))
    sketch.add(*time.marks(bottom))

    def describe_rest(rest: range) -> str:
        count = plural(len(rest), "more device")
        more = say(en=f": {count}", zh=f"：还有 {len(rest)} 个设备")
        return f"{names[rest[0]]} – {names[rest[-1]]}" + more

    for at, device in lane.iterate_shown(sketch, shown, describe_rest):
        sketch.add(lane.name(at, names[device]), *_lane(time, at, bars.get(names[device], [])))
    sketch.texts = _drop_covered(sketch.texts, sketch.boxes)
    if moment is not None:
        x = _LEFT + min(max(moment - first, 0.0), time.seconds) * time.scale
        sketch.add(
            Line(x, _TOP - 10, x, bottom, strong=True, over=True),
            Label(x, _TOP - 14, duration(moment - first), 11, "middle", bold=True),
        )
    steps = _steps(time, trace, bottom + 34)
    sketch.add(*steps)
    return sketch.picture(bottom + (44 if steps else 30), _description(trace, moment))


def _steps(time: TimeAxis, trace: Trace, line: float) -> list[Label]:
    """Name the steps in which data moved, below their times; names without room are joined with their neighbours."""
    spans: dict[str, tuple[float, float]] = {}
    for event in trace:
        if event.phase in _NAMED and event.phase not in ("parallel_apply", "copy"):
            name = _tip_phase(event) if _phase(event) == caption("phase", event.phase) else _phase(event)
            start, stop = spans.get(name, (event.start, event.stop))
            spans[name] = min(start, event.start), max(stop, event.stop)
    if len(spans) > _MOST_STEPS or len(trace.calls()) > 1:
        return []
    found: list[tuple[float, str]] = []  # the left edge of each text, and the text
    for name, (start, stop) in sorted(spans.items(), key=lambda item: item[1]):
        width = text_width(name, 11)
        middle, most = time.x((start + stop) / 2), _LEFT + time.lanes.width + 30
        x = min(max(middle - width / 2, _LEFT - 40), most - width)
        if found and found[-1][0] + text_width(found[-1][1], 11) + 8 > x:
            x, before = found.pop()
            name = series([before, name])
            x = min(x, most - text_width(name, 11))
        found.append((x, name))
    return [Label(x, line, name, 11, muted=True) for x, name in found]


def _lane(time: TimeAxis, at: int, bars: list[tuple[Event, int]]) -> list[Box | Label]:
    """Draw a device's lane: a bar for each event; data arriving at the same time are stacked."""
    lane, found = time.lanes, list[Box | Label]()
    tiers, count = _tiers([event for event, _ in bars if event.phase != "parallel_apply"])
    for event, many in bars:
        width = min(max(event.seconds * time.scale, 1.0), lane.width)
        x = min(time.x(event.start), _LEFT + lane.width - width)
        top, tall = lane.y(at) + 2, lane.high - 4
        if event.phase != "parallel_apply":
            band = tall * _THIN
            tier = tiers[id(event)] if count <= 4 else 0
            tall = band / (count if count <= 4 else 1)
            top = lane.y(at) + lane.high - 2 - band + tier * tall
        tint = _PALE if event.direction == "backward" else 0.0
        gpu = number(event.device)
        times = f" ×{many}" if many > 1 else ""
        label = f"{event.device} {event.phase} {event.direction}{times}"
        found.append(Box(x, top, width, tall, gpu, label, tint=tint, tip=_tip(event, times)))
        words, fine = _phase(event), min(11.0, tall - 1)
        if fine >= 9 and text_width(words, fine) + 4 <= width and (count <= 1 or tall > lane.high / 2):
            line = top + tall / 2 + fine * BASELINE
            found.append(Label(x + width / 2, line, words, fine, "middle", gpu=gpu, tint=tint))
    return found


def moment_of(trace: Trace, share: float) -> float:
    """Return the time at ``share`` (0 to 1) of the trace, in seconds since the recording began."""
    first, last = _span(trace)
    return first + share * (last - first)


def _description(trace: Trace, moment: float | None) -> str:
    if not len(trace):
        return say(en="Nothing was recorded.", zh="没有记录到任何事件。")
    first, last = _span(trace)
    if moment is None:
        computing = dict.fromkeys(trace.devices, 0.0)
        for event in trace:
            computing[event.device] += event.seconds * (event.phase == "parallel_apply")
        share = max(computing.values()) / (last - first)
        moved = sum(event.nbytes for event in trace)
        counts = {"events": len(trace), "devices": len(trace.devices)}
        return caption("timeline", **counts, time=duration(last - first), share=share, moved=moved)
    now = [event for event in trace if event.start <= moment < event.stop]
    at = duration(moment - first)
    if not now:
        return say(en=f"At {at} nothing runs.", zh=f"{at} 时没有任何操作在进行。")
    parts: dict[str, set[str]] = {}
    for event in now:
        parts.setdefault(_tip_phase(event), set()).add(event.device)
    left, right = say(en=" (", zh="（"), say(en=")", zh="）")
    listed = series(f"{phase}{left}{_devices(found)}{right}" for phase, found in parts.items())
    return say(en=f"At {at}: {listed}.", zh=f"{at} 时，{listed}。")


def _legend(slot: float) -> list[Box | Line | Label]:
    """Make the legend: tall, thin and pale bars; with merged bars, the ``slot`` of seconds."""
    kinds = (
        (14, 0.0, say(en="computing", zh="计算")),
        (14 * _THIN, 0.0, say(en="data arriving", zh="数据到达")),
        (14, _PALE, say(en="backward", zh="反向")),
    )
    marks = [(words, [Box(0, 23 - tall, 16, tall, CPU, "legend", tint=tint)]) for tall, tint, words in kinds]
    if slot:
        closer = duration(slot)
        marks.append((say(en=f"(each bar sums {closer})", zh=f"（每 {closer} 累加成一段）"), []))
    return legend(_LEFT, 20, marks, text_offset=22, gap=24)


def _span(trace: Trace) -> tuple[float, float]:
    """Return when the first event began and the last ended, in seconds since the recording began."""
    first = min((event.start for event in trace), default=0.0)
    last = max((event.stop for event in trace), default=0.0)
    return first, max(last, first + 1e-6)


def _bars(events: list[Event], first: float, last: float) -> tuple[dict[str, list[tuple[Event, int]]], float]:
    """Merge events into bars: return the events of each device with their counts, and the seconds of a slot.

    Pieces of one collective arrive together and form one bar. If more bars remain than can be read, those of a kind
    that begin in the same slot are added up, and kinds follow one another.
    """
    found: dict[tuple[str, str, str, float], list[Event]] = {}
    for event in events:
        found.setdefault((event.device, event.phase, event.direction, event.start), []).append(event)
    slot = 0.0
    if len(found) > _MOST_BARS:
        apart, found = found, {}
        slot = (last - first) / max(_MOST_BARS // len({key[:3] for key in apart}), 1)
        for (device, phase, direction, start), group in apart.items():
            found.setdefault((device, phase, direction, (start - first) // slot), []).extend(group)
    bars: dict[str, list[tuple[Event, int]]] = {}
    ends: dict[tuple[str, bool, float], float] = {}
    for (device, phase, _, at), group in found.items():
        event = max(group, key=lambda event: event.seconds)
        if slot:
            lane = device, phase == "parallel_apply", at
            start, seconds = max(ends.get(lane, 0.0), group[0].start), sum(one.seconds for one in group)
            ends[lane] = start + seconds
            event = replace(event, start=start, seconds=seconds, nbytes=sum(one.nbytes for one in group))
        bars.setdefault(device, []).append((event, len(group)))
    return bars, slot


def _tiers(events: list[Event]) -> tuple[dict[int, int], int]:
    """Assign a tier to each event (by its id) so that none in a tier overlap; return also the number of tiers."""
    tiers: dict[int, int] = {}
    ends: list[float] = []
    for event in sorted(events, key=lambda event: event.start):
        free = next((tier for tier, end in enumerate(ends) if end <= event.start + 1e-12), len(ends))
        if free == len(ends):
            ends.append(0.0)
        ends[free] = event.stop
        tiers[id(event)] = free
    return tiers, max(len(ends), 1)


def _drop_covered(texts: list[Label], boxes: list[Box]) -> list[Label]:
    """Drop the texts in bars that other bars cover."""
    kept = []
    for text in texts:
        if text.gpu is not None:
            half = text_width(text.text, text.size) / 2
            covering = [
                box for box in boxes
                if box.x < text.x + half and box.x + box.width > text.x - half
                and box.y < text.y and box.y + box.height > text.y - text.size * 0.7
            ]  # fmt: skip
            if len(covering) > 1:
                continue
        kept.append(text)
    return kept


def _phase(event: Event) -> str:
    if event.phase == "replicate" and event.direction == "backward":
        return caption("phase", "reduce")  # the gradients of the replicas, summed
    return caption("phase", event.phase) if event.phase in _NAMED else event.name or event.phase


def _tip_phase(event: Event) -> str:
    name = _phase(event)
    if event.direction == "forward" or event.phase == "replicate":  # "reduce" is a step of backward only
        return name
    if event.phase == "parallel_apply":
        return say(en="computing the backward pass", zh="反向计算")
    return say(en=f"backward of {name}", zh=f"{name}的反向")


def _tip(event: Event, times: str) -> str:
    tip = f"{event.device} · {_tip_phase(event)}{times} · {duration(event.seconds)}"
    return tip + (f" · {event.nbytes:,} B" if event.nbytes else "")


def _devices(names: set[str]) -> str:
    ordered = sorted(names, key=number)
    if len(ordered) <= 3:
        return series(ordered)
    return say(en=f"{len(ordered)} GPUs", zh=f"{len(ordered)} 块 GPU")
