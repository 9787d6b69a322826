"""What happened: the events of a run, in order, with devices, shapes, bytes and seconds.

A :class:`Trace` is plain data. Whoever does the work calls :func:`emit`; whoever wants to know holds a
recording open (``labkit.record()``). With none open, :data:`recording` is None and nothing is spent.

Each thread knows its :class:`Place`: in which data-parallel call it is, on which replica, inside which verb. So an
event is told where it belongs when it happens.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field, replace
from time import perf_counter
from typing import Any

from ..base.display import Drawn
from ..base.numbers import plural
from .chrome import chrome_json

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
    call        the data-parallel call it belongs to, counted from 0 in each recording; None outside of calls.
    replica     the replica whose piece, weights, computation or output it is; None where it is not one replica's.
    parent      the call in one of whose replicas ``call`` was made; None for a call that is in no other.
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
    call: int | None = None
    replica: int | None = None
    parent: int | None = None

    @property
    def stop(self) -> float:
        """When it ended, in seconds since the recording began."""
        return self.start + self.seconds


@dataclass(repr=False)
class Trace(Drawn):
    """Events in the order in which they were finished. In a notebook it shows itself as a timeline."""

    events: list[Event] = field(default_factory=list)
    origin: float = field(default_factory=perf_counter, repr=False)

    def __iter__(self) -> Iterator[Event]:
        return iter(self.events)

    def __len__(self) -> int:
        return len(self.events)

    @property
    def devices(self) -> tuple[str, ...]:
        """Devices that occur, the CPU first, then GPUs by number."""
        names = {event.device for event in self.events} | {e.source for e in self.events if e.source}
        return tuple(sorted(names, key=lambda name: (name != "cpu", int(name.partition(":")[2] or 0))))

    def only(
        self,
        *,
        phase: str | None = None,
        direction: str | None = None,
        device: str | None = None,
        call: int | None = None,
        replica: int | None = None,
    ) -> Trace:
        """The events that match every given value, as a trace of the same clock."""
        asked = {"phase": phase, "direction": direction, "device": device, "call": call, "replica": replica}
        wanted = {key: value for key, value in asked.items() if value is not None}
        kept = [e for e in self.events if all(getattr(e, key) == value for key, value in wanted.items())]
        return Trace(kept, self.origin)

    def __repr__(self) -> str:
        """A short table: a line for each phase, in the order in which they began."""
        if not self.events:
            return "Trace: no events"
        first, last = min(e.start for e in self.events), max(e.stop for e in self.events)
        lines = [
            f"Trace: {plural(len(self), 'event')} on {', '.join(_runs(self.devices))} "
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
        """The data-parallel calls in it, in order of their first events, each as a trace of the same clock.

        Calls of several threads, and a call inside a replica of another, are apart; what belongs to no call is left
        out.
        """
        groups: dict[int, list[Event]] = {}
        for event in sorted(self.events, key=lambda event: event.start):
            if event.call is not None:
                groups.setdefault(event.call, []).append(event)
        return tuple(Call(group, self.origin) for group in groups.values())

    def to_json(self) -> str:
        """The events as a JSON array of objects."""
        return json.dumps([asdict(event) for event in self.events], indent=1)

    def to_chrome(self) -> str:
        """The events in Chrome's trace format (JSON), which Perfetto and chrome://tracing open.

        A row for each device; times in microseconds since the recording began.
        """
        return chrome_json(self.events, self.devices)


@dataclass(repr=False)
class Call(Trace):
    """The events of one data-parallel call. In a notebook it shows itself as the way of the batch, there and back."""

    def __repr__(self) -> str:
        """What does not change from run to run: no seconds."""
        return f"Call: {plural(len(self), 'event')} on {', '.join(_runs(self.devices))}"


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


class Opened:
    """A data-parallel call that has begun; ``parent`` is the call in one of whose replicas that was."""

    def __init__(self) -> None:
        self.parent = _place.get().call


@dataclass(frozen=True)
class Place:
    """Where a thread is: in which call, on which replica, inside which verb (a phase of which copies are part)."""

    call: Opened | None = None
    replica: int | None = None
    verb: str | None = None


_NOWHERE = Place()
_place: ContextVar[Place] = ContextVar("labkit_place", default=_NOWHERE)


def place() -> Place:
    """Where this thread is now."""
    return _place.get()


@contextmanager
def at(here: Place) -> Iterator[None]:
    """This thread is at ``here`` meanwhile."""
    token = _place.set(here)
    try:
        yield
    finally:
        _place.reset(token)


# The recordings that are open, innermost last; every one of them gets every event, from any thread. With each, the
# calls that it has seen, in order: their numbers.
recording: list[Trace] | None = None
_numbers: dict[int, dict[Opened, int]] = {}
_lock = threading.Lock()


def begin() -> Trace:
    """Open a recording and return its trace (empty so far)."""
    global recording
    trace = Trace()
    with _lock:
        _numbers[id(trace)] = {}
        recording = [*(recording or ()), trace]
    return trace


def end(trace: Trace) -> None:
    """Close the recording that :func:`begin` opened, and put its events in order."""
    global recording
    with _lock:
        recording = [other for other in recording or () if other is not trace] or None
        del _numbers[id(trace)]
        trace.events.sort(key=lambda event: event.start)


def emit(phase: str, device: str, *, started: float, replica: int | None = None, **facts: Any) -> None:
    """Add an event that began at ``started`` (a ``time.perf_counter`` reading) and ends now.

    It belongs to the call, and unless ``replica`` is given to the replica, where this thread is. Copies inside a
    verb are not told: they are what the verb consists of, and its own event counts them.
    """
    here = _place.get()
    if phase == "copy" and here.verb is not None:
        return
    seconds = perf_counter() - started
    event = Event(
        phase, device, seconds=seconds, replica=here.replica if replica is None else replica, **facts
    )
    with _lock:
        for trace in recording or ():
            numbers = _numbers[id(trace)]
            call = None if here.call is None else numbers.setdefault(here.call, len(numbers))
            parent = numbers.get(here.call.parent) if here.call and here.call.parent else None
            trace.events.append(replace(event, start=started - trace.origin, call=call, parent=parent))
