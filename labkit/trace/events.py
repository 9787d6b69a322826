"""What happened: the events of a run, in order, with devices, shapes, bytes and seconds.

A :class:`Trace` is plain data. Whoever does the work calls :func:`emit`; whoever wants to know holds a
recording open (``labkit.record()``). With none open, :data:`recording` is None and nothing is spent.
"""

from __future__ import annotations

import json
import threading
from dataclasses import asdict, dataclass, field
from time import perf_counter

from ..base.display import Drawn

# The phases of a data-parallel call, and a plain copy between devices.
PHASES = ("replicate", "scatter", "parallel_apply", "gather", "copy")


@dataclass(frozen=True)
class Event:
    """One thing that happened on one device.

    phase       one of PHASES. ``parallel_apply`` is the computation of one replica.
    device      where it happened or arrived: ``"cuda:1"``, ``"cpu"``.
    source      where the data came from, for events that move data; else None.
    direction   ``"forward"`` or ``"backward"``. The backward of replicate is the sum (reduce_add) of
                gradients onto the source, of scatter a gather, of gather a scatter.
    shapes      shapes of the tensors that moved or went in, e.g. ``((15, 5),)``.
    outputs     shapes of what came out, where that differs.
    nbytes      bytes moved (0 for computation).
    start       seconds since the recording began.
    seconds     how long it took.
    name        what ran or moved: a module's class, an argument's name. May be "".
    """

    phase: str
    device: str
    source: str | None = None
    direction: str = "forward"
    shapes: tuple[tuple[int, ...], ...] = ()
    outputs: tuple[tuple[int, ...], ...] = ()
    nbytes: int = 0
    start: float = 0.0
    seconds: float = 0.0
    name: str = ""

    @property
    def stop(self) -> float:
        """When it ended, in seconds since the recording began."""
        return self.start + self.seconds


@dataclass(repr=False)
class Trace(Drawn):
    """Events in the order in which they were finished. In a notebook it shows itself as a timeline."""

    events: list[Event] = field(default_factory=list)
    origin: float = field(default_factory=perf_counter, repr=False)

    def __iter__(self):
        return iter(self.events)

    def __len__(self) -> int:
        return len(self.events)

    @property
    def devices(self) -> tuple[str, ...]:
        """Devices that occur, the CPU first, then GPUs by number."""
        names = {event.device for event in self.events} | {e.source for e in self.events if e.source}
        return tuple(sorted(names, key=lambda name: (name != "cpu", int(name.partition(":")[2] or 0))))

    def only(
        self, *, phase: str | None = None, direction: str | None = None, device: str | None = None
    ) -> Trace:
        """The events that match every given value, as a trace of the same clock."""
        wanted = {"phase": phase, "direction": direction, "device": device}
        wanted = {key: value for key, value in wanted.items() if value is not None}
        kept = [e for e in self.events if all(getattr(e, key) == value for key, value in wanted.items())]
        return Trace(kept, self.origin)

    def __repr__(self) -> str:
        """A short table: a line for each phase, in the order in which they began."""
        if not self.events:
            return "Trace: no events"
        first, last = min(e.start for e in self.events), max(e.stop for e in self.events)
        lines = [
            f"Trace: {len(self)} event{'s' * (len(self) != 1)} on {', '.join(_runs(self.devices))} "
            f"in {(last - first) * 1e3:.3g} ms"
        ]
        groups: dict[tuple[str, str], list[Event]] = {}
        for event in sorted(self.events, key=lambda event: event.start):
            groups.setdefault((event.direction, event.phase), []).append(event)
        for (direction, phase), events in groups.items():
            shapes = list(dict.fromkeys(str(list(s)) for e in events for s in e.shapes[:1]))
            listed = ", ".join(shapes[:3]) + (", …" if len(shapes) > 3 else "")
            seconds = sum(max(e.stop for e in run) - run[0].start for run in _together(events))
            lines.append(
                f"  {direction:<8}  {phase:<14}  {len(events):>5} ×  {sum(e.nbytes for e in events):>14,} B"
                f"  {seconds * 1e3:>9.3f} ms  {listed}".rstrip()
            )
        return "\n".join(lines)

    def calls(self) -> tuple[Call, ...]:
        """The data-parallel calls in it, in order, each as a trace of the same clock.

        A call begins with a scatter. Backward events, and copies, belong to the call begun last before them.
        """
        groups: list[list[Event]] = []
        reached: set[str] | None = None  # devices of the scatter going on; None once the call is past it
        for event in sorted(self.events, key=lambda event: event.start):
            if event.phase == "scatter" and event.direction == "forward":
                if reached is None or event.device in reached:
                    groups.append([])
                    reached = set()
                reached.add(event.device)
            else:
                reached = None
            if groups:
                groups[-1].append(event)
        return tuple(Call(group, self.origin) for group in groups)

    def to_json(self) -> str:
        """The events as a JSON array of objects."""
        return json.dumps([asdict(event) for event in self.events], indent=1)

    def to_chrome(self) -> str:
        """The events in Chrome's trace format (JSON), which Perfetto and chrome://tracing open.

        A row for each device; times in microseconds since the recording began.
        """
        rows = {device: row for row, device in enumerate(self.devices)}
        names = [
            {"name": "thread_name", "ph": "M", "pid": 0, "tid": row, "args": {"name": device}}
            for device, row in rows.items()
        ]
        spans = [
            {
                "name": f"{event.phase} {event.name}".rstrip(),
                "cat": event.direction,
                "ph": "X",
                "ts": event.start * 1e6,
                "dur": event.seconds * 1e6,
                "pid": 0,
                "tid": rows[event.device],
                "args": {
                    "source": event.source,
                    "shapes": [list(shape) for shape in event.shapes],
                    "outputs": [list(shape) for shape in event.outputs],
                    "nbytes": event.nbytes,
                },
            }
            for event in self.events
        ]
        return json.dumps({"traceEvents": names + spans, "displayTimeUnit": "ms"})


@dataclass(repr=False)
class Call(Trace):
    """The events of one data-parallel call. In a notebook it shows itself as the way of the batch, there and back."""

    def __repr__(self) -> str:
        """What does not change from run to run: no seconds."""
        return f"Call: {len(self)} event{'s' * (len(self) != 1)} on {', '.join(_runs(self.devices))}"


def _runs(devices: tuple[str, ...]) -> list[str]:
    """Device names; more than three GPUs in a row as the first and the last."""
    return list(devices) if len(devices) <= 4 else [*devices[:2], "…", devices[-1]]


def _together(events: list[Event]) -> list[list[Event]]:
    """Events that overlap in time, grouped: they are counted once."""
    groups: list[list[Event]] = []
    end = float("-inf")
    for event in sorted(events, key=lambda event: event.start):
        if event.start >= end:
            groups.append([])
        groups[-1].append(event)
        end = max(end, event.stop)
    return groups


# The recordings that are open, innermost last; every one of them gets every event, from any thread.
recording: list[Trace] | None = None
_lock = threading.Lock()


def begin() -> Trace:
    """Open a recording and return its trace (empty so far)."""
    global recording
    trace = Trace()
    with _lock:
        recording = [*(recording or ()), trace]
    return trace


def end(trace: Trace) -> None:
    """Close the recording that :func:`begin` opened."""
    global recording
    with _lock:
        recording = [other for other in recording or () if other is not trace] or None


def emit(phase: str, device: str, *, started: float, **facts) -> None:
    """Add an event that began at ``started`` (a ``time.perf_counter`` reading) and ends now."""
    now = perf_counter()
    for trace in recording or ():
        trace.events.append(
            Event(phase, device, start=started - trace.origin, seconds=now - started, **facts)
        )
