"""The picture of a trace in time: a lane for each device, a bar for each thing that happened on it."""

from __future__ import annotations

from ..base.display import draws
from ..base.language import say
from ..trace.events import Event, Trace
from .palette import CPU, number
from .picture import Box, Line, Picture, Text, lane_size, text_width
from .svg import to_svg

WIDTH = 720
_LEFT, _RIGHT, _TOP = 76, 36, 54
_PALE = 0.55
# How much of a lane's height the arrival of data takes; computing takes all of it.
_THIN = 0.55


def timeline_picture(trace: Trace, moment: float | None = None) -> Picture:
    """What happened when, as a :class:`Picture`.

    moment   seconds since the recording began, marked by a line across all lanes; None: no line.
    """
    devices = trace.devices
    lane, size = lane_size(len(devices))
    first, last = _span(trace)
    across = WIDTH - _LEFT - _RIGHT
    scale = across / (last - first)
    height = _TOP + max(len(devices), 1) * lane + 34
    bottom = height - 30
    boxes, texts, lines = _legend()
    for tick in _ticks(last - first):
        x = _LEFT + tick * scale
        lines.append(Line(x, _TOP - 4, x, bottom, muted=True))
        texts.append(Text(x, bottom + 16, _milliseconds(tick), 11, "middle", muted=True))
    if not len(trace):
        texts.append(
            Text(_LEFT, _TOP + lane * 0.7, say(en="nothing recorded", zh="没有记录"), 13, muted=True)
        )
    for at, device in enumerate(devices):
        y = _TOP + at * lane
        texts.append(Text(_LEFT - 8, y + lane / 2 + size * 0.35, device, size, "end"))
        events = _merged([event for event in trace if event.device == device])
        rows, count = _rows([event for event, _ in events if event.phase != "parallel_apply"])
        for event, many in events:
            x = _LEFT + (event.start - first) * scale
            width = max(event.seconds * scale, 1.0)
            x = min(x, _LEFT + across - width)
            top, tall = y + 2, lane - 4
            if event.phase != "parallel_apply":
                band = tall * _THIN
                row = rows[id(event)] if count <= 4 else 0
                tall = band / (count if count <= 4 else 1)
                top = y + lane - 2 - band + row * tall
            tint = _PALE if event.direction == "backward" else 0.0
            gpu = number(device)
            boxes.append(
                Box(x, top, width, tall, gpu=gpu, tint=tint, label=_label(event, many), tip=_tip(event, many))
            )
            words = _phase(event)
            fine = min(11.0, tall - 1)
            if fine >= 9 and text_width(words, fine) + 4 <= width and (count <= 1 or tall > lane / 2):
                line = top + tall / 2 + fine * 0.35
                texts.append(Text(x + width / 2, line, words, fine, "middle", gpu=gpu, tint=tint))
    texts = _apart(texts, boxes)
    if moment is not None:
        x = _LEFT + min(max(moment - first, 0.0), last - first) * scale
        lines.append(Line(x, _TOP - 10, x, bottom, strong=True, over=True))
        texts.append(Text(x, _TOP - 14, _milliseconds(moment - first), 11, "middle", bold=True))
    return Picture(WIDTH, height, tuple(boxes), tuple(texts), describe_timeline(trace, moment), tuple(lines))


def moment_of(trace: Trace, share: float) -> float:
    """The time at ``share`` (0 to 1) of the trace, in seconds since the recording began."""
    first, last = _span(trace)
    return first + share * (last - first)


def describe_timeline(trace: Trace, moment: float | None = None) -> str:
    """The trace, or what goes on at one moment of it, in one sentence."""
    if not len(trace):
        return say(en="Nothing was recorded.", zh="没有记录到任何事件。")
    first, last = _span(trace)
    if moment is None:
        computing = dict.fromkeys(trace.devices, 0.0)
        for event in trace:
            computing[event.device] += event.seconds * (event.phase == "parallel_apply")
        share = max(computing.values()) / (last - first)
        moved = sum(event.nbytes for event in trace)
        return say(
            en=f"{_count(len(trace), 'event')} on {_count(len(trace.devices), 'device')} "
            f"in {_milliseconds(last - first)}; "
            f"the busiest GPU computes for {share:.0%} of it; {moved:,} bytes are moved.",
            zh=f"{len(trace.devices)} 个设备上有 {len(trace)} 个事件，历时 {_milliseconds(last - first)}；"
            f"最忙的 GPU 有 {share:.0%} 的时间在计算；共移动 {moved:,} 字节。",
        )
    now = [event for event in trace if event.start <= moment < event.stop]
    at = _milliseconds(moment - first)
    if not now:
        return say(en=f"After {at} nothing goes on.", zh=f"{at} 时没有任何操作在进行。")
    parts = {}
    for event in now:
        parts.setdefault(_tip_phase(event), set()).add(event.device)
    listed = say(en="; ", zh="；").join(
        say(en=f"{phase}: {_devices(found)}", zh=f"{phase}：{_devices(found)}")
        for phase, found in parts.items()
    )
    return say(en=f"After {at}: {listed}.", zh=f"{at} 时正在进行的操作——{listed}。")


@draws(Trace)
def timeline_svg(trace: Trace) -> str:
    """The trace as SVG text, on a panel of its own so that it reads on any background."""
    return to_svg(timeline_picture(trace), panel=True)


def draw_timeline(trace: Trace, *, ax=None):
    """Draw what happened when, in milliseconds; returns the matplotlib Axes.

    trace  what ``labkit.record()`` gave.
    ax     the Axes to draw into; a new figure if not given.

    Raises TypeError for anything but a trace.
    """
    if not isinstance(trace, Trace):
        raise TypeError(f"trace must be what labkit.record() gives, got {trace!r} ({type(trace).__name__})")
    from .figure import paint  # matplotlib is only wanted here

    return paint(lambda: timeline_picture(trace), ax)


def _legend() -> tuple[list[Box], list[Text], list[Line]]:
    """What tall, thin and pale bars mean."""
    boxes, texts, x = [], [], float(_LEFT)
    for tall, tint, words in (
        (14, 0.0, say(en="computing", zh="计算")),
        (14 * _THIN, 0.0, say(en="data arriving", zh="数据到达")),
        (14, _PALE, say(en="backward", zh="反向")),
    ):
        boxes.append(Box(x, 23 - tall, 16, tall, gpu=CPU, tint=tint, label="legend"))
        texts.append(Text(x + 22, 20, words, 11))
        x += 22 + text_width(words, 11) + 24
    return boxes, texts, []


def _span(trace: Trace) -> tuple[float, float]:
    """When the first event began and the last ended, in seconds since the recording began."""
    first = min((event.start for event in trace), default=0.0)
    last = max((event.stop for event in trace), default=0.0)
    return first, max(last, first + 1e-6)


def _merged(events: list[Event]) -> list[tuple[Event, int]]:
    """Events, and how many of them: pieces of one collective arrive together and are drawn as one bar."""
    found: dict[tuple, list[Event]] = {}
    for event in events:
        found.setdefault((event.phase, event.direction, event.start), []).append(event)
    return [(max(group, key=lambda event: event.seconds), len(group)) for group in found.values()]


def _rows(events: list[Event]) -> tuple[dict[int, int], int]:
    """A row for each event such that no two in a row overlap, by the event's identity; and how many rows."""
    rows: dict[int, int] = {}
    ends: list[float] = []
    for event in sorted(events, key=lambda event: event.start):
        free = next((row for row, end in enumerate(ends) if end <= event.start + 1e-12), len(ends))
        if free == len(ends):
            ends.append(0.0)
        ends[free] = event.stop
        rows[id(event)] = free
    return rows, max(len(ends), 1)


def _apart(texts: list[Text], boxes: list[Box]) -> list[Text]:
    """The texts without those in a bar that another bar lies over."""
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


def _ticks(seconds: float) -> list[float]:
    """Round times from 0 on, at most eight of them, that fit into ``seconds``."""
    step = 1e-9
    while seconds / step > 7:
        step *= 2.5 if f"{step:e}"[0] == "2" else 2
    return [step * at for at in range(int(seconds / step * (1 + 1e-9)) + 1)]


def _milliseconds(seconds: float) -> str:
    value = seconds * 1e3
    return f"{value:,.0f} ms" if value >= 100 or value == int(value) else f"{value:.3g} ms"


def _phase(event: Event) -> str:
    names = {
        "replicate": say(en="replicate", zh="复制"),
        "scatter": say(en="scatter", zh="分发"),
        "parallel_apply": say(en="compute", zh="计算"),
        "gather": say(en="gather", zh="收集"),
        "copy": say(en="copy", zh="拷贝"),
    }
    if event.direction == "backward":
        names["replicate"] = say(en="reduce", zh="归约")  # the gradients of the replicas, summed
    return names.get(event.phase, event.phase)


def _tip_phase(event: Event) -> str:
    return _phase(event) + (say(en=", backward", zh="（反向）") if event.direction == "backward" else "")


def _label(event: Event, many: int) -> str:
    return f"{event.device} {event.phase} {event.direction}" + (f" ×{many}" if many > 1 else "")


def _tip(event: Event, many: int) -> str:
    words = f"{event.device} · {_tip_phase(event)}" + (f" ×{many}" if many > 1 else "")
    return f"{words} · {_milliseconds(event.seconds)}" + (f" · {event.nbytes:,} B" if event.nbytes else "")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def _devices(names: set[str]) -> str:
    ordered = sorted(names, key=number)
    if len(ordered) <= 3:
        return say(en=", ", zh="、").join(ordered)
    return say(en=f"{len(ordered)} GPUs", zh=f"{len(ordered)} 块 GPU")
