"""What happened: the events of a run, in order, with devices, shapes, bytes and seconds.

A :class:`Trace` is plain data. Whoever does the work calls :func:`emit`; whoever wants to know holds a
recording open (``labkit.record()``). With none open, :data:`recording` is None and nothing is spent.

Each thread knows its :class:`Place`: in which data-parallel call it is, on which replica, inside which verb. So an
event is told where it belongs when it happens. While ranks run, :func:`tell_ranks` says of which rank a thread is, and
the events of a rank are timed by its own clock.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field, replace
from time import perf_counter
from typing import Any

from ..base.display import Drawn
from ..base.numbers import plural
from .chrome import chrome_json
from .memory import MemorySample, MemoryTimeline

# The phases of a data-parallel call, a plain copy between devices, and what ranks do together.
PHASES = ("replicate", "scatter", "parallel_apply", "gather", "copy", "collective")
# Of the phase "collective", what two ranks do: they meet as source and destination, not as a group.
PAIRS = ("send", "recv")


@dataclass(frozen=True)
class Event:
    """One thing that happened on one device.

    phase       one of PHASES. ``parallel_apply`` is the computation of one replica, ``collective`` one rank's part in
                what several ranks do together.
    device      where it happened or arrived: ``"cuda:1"``, ``"cpu"``.
    source      where the data came from, for events that move data; else None.
    direction   ``"forward"`` or ``"backward"``. The backward of replicate is the sum (reduce_add) of
                gradients onto the source, of scatter a gather, of gather a scatter.
    shapes      shapes of the tensors that moved or went in, e.g. ``((15, 5),)``.
    outputs     shapes of what came out, where that differs.
    nbytes      bytes moved (0 for computation).
    start       seconds since the recording began; for a rank's events seconds on its clock.
    seconds     how long it took.
    name        what ran or moved: a module's class, an argument's name; of a collective its kind, ``"all_reduce"``.
                May be "".
    call        the data-parallel call it belongs to, counted from 0 in each recording; None outside of calls.
    replica     the replica whose piece, weights, computation or output it is; None where it is not one replica's.
    parent      the call in one of whose replicas ``call`` was made; None for a call that is in no other.
    rank        the rank that it happened on; None where no ranks run.

    Of a collective, which begins when the rank calls it and ends when it has its result:

    group       the name of the process group.
    sequence    its number in that group, from 1; of ``send`` and ``recv`` the number between these two ranks.
    ranks       the members of the group; of ``send`` and ``recv`` the source and the destination.
    waited      seconds that this rank stood still until the last member came, in the call or in its ``wait()``.
    last        the rank that came last.
    async_op    whether the rank went on meanwhile, as ``async_op=True`` asks.
    place       the line that called it: ``"train.py:31 in step"``.
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
    rank: int | None = None
    group: str = ""
    sequence: int | None = None
    ranks: tuple[int, ...] = ()
    waited: float = 0.0
    last: int | None = None
    async_op: bool = False
    place: str = ""

    @property
    def stop(self) -> float:
        """When it ended, by the clock of ``start``."""
        return self.start + self.seconds

    @property
    def meeting(self) -> tuple[object, ...]:
        """The same for the parts of all members in one collective, and for those of no other."""
        return self.group, self.name in PAIRS, self.ranks, self.sequence


@dataclass(frozen=True)
class Meeting:
    """One collective: the parts of its members in it, in the order of ranks. A trace may have only some of them."""

    parts: tuple[Event, ...]

    @property
    def kind(self) -> str:
        """``"all_reduce"``; of two ranks ``"send"``."""
        return self.parts[0].name if self.parts[0].name not in PAIRS else PAIRS[0]

    @property
    def at(self) -> float:
        """When the last member came, by the clock of all of them."""
        return max(part.start + part.waited for part in self.parts)

    @property
    def stop(self) -> float:
        """When the last member had its result."""
        return max(part.stop for part in self.parts)

    @property
    def last(self) -> int | None:
        """The rank that came last."""
        return self.parts[0].last


@dataclass(repr=False)
class Trace(Drawn):
    """Events in the order in which they were finished. In a notebook it shows itself as a timeline.

    samples   of ranks: how much memory they had in use.
    """

    events: list[Event] = field(default_factory=list)
    origin: float = field(default_factory=perf_counter, repr=False)
    samples: list[MemorySample] = field(default_factory=list, repr=False)

    def __iter__(self) -> Iterator[Event]:
        return iter(self.events)

    def __len__(self) -> int:
        return len(self.events)

    @property
    def devices(self) -> tuple[str, ...]:
        """Devices that occur, the CPU first, then GPUs by number."""
        names = {event.device for event in self.events} | {e.source for e in self.events if e.source}
        return tuple(sorted(names, key=lambda name: (name != "cpu", int(name.partition(":")[2] or 0))))

    @property
    def ranks(self) -> tuple[int, ...]:
        """Ranks that occur; () where none ran."""
        found = {event.rank for event in self.events} | {sample.rank for sample in self.samples}
        return tuple(sorted(rank for rank in found if rank is not None))

    @property
    def groups(self) -> dict[str, tuple[int, ...]]:
        """The process groups that met, each with its members, in order of their first meeting."""
        return {e.group: e.ranks for e in self.events if e.phase == "collective" and e.name not in PAIRS}

    @property
    def memory(self) -> MemoryTimeline:
        """How much memory each rank had in use, when."""
        return MemoryTimeline(tuple(self.samples))

    def only(
        self,
        *,
        phase: str | None = None,
        direction: str | None = None,
        device: str | None = None,
        call: int | None = None,
        replica: int | None = None,
        rank: int | None = None,
        group: str | None = None,
        name: str | None = None,
    ) -> Trace:
        """The events that match every given value, as a trace of the same clock."""
        asked = {
            "phase": phase, "direction": direction, "device": device, "call": call, "replica": replica,
            "rank": rank, "group": group, "name": name,
        }  # fmt: skip
        wanted = {key: value for key, value in asked.items() if value is not None}
        kept = [e for e in self.events if all(getattr(e, key) == value for key, value in wanted.items())]
        samples = [
            s for s in self.samples if rank in (None, s.rank) and device in (None, s.device) and not group
        ]
        return Trace(kept, self.origin, samples)

    def between(self, start: float, stop: float) -> Trace:
        """What goes on at some time from ``start`` to ``stop`` (seconds, as in the events); of the same clock."""
        kept = [event for event in self.events if event.stop >= start and event.start <= stop]
        return Trace(kept, self.origin, [sample for sample in self.samples if start <= sample.at <= stop])

    def meetings(self) -> tuple[Meeting, ...]:
        """The collectives of ranks in it, in the order in which they were met."""
        parts: dict[tuple[object, ...], list[Event]] = {}
        for event in self.events:
            if event.phase == "collective":
                parts.setdefault(event.meeting, []).append(event)
        found = [Meeting(tuple(sorted(group, key=lambda part: part.rank or 0))) for group in parts.values()]
        return tuple(sorted(found, key=lambda meeting: meeting.at))

    def waited(self) -> dict[tuple[int, int], float]:
        """Seconds that ranks stood still: by the rank that stood and the one that came last."""
        found: dict[tuple[int, int], float] = {}
        for event in self.events:
            if event.rank is not None and event.last is not None and event.waited:
                pair = event.rank, event.last
                found[pair] = found.get(pair, 0.0) + event.waited
        return found

    def __repr__(self) -> str:
        """A short table: a line for each phase and each kind of collective, in the order in which they began."""
        if not self.events:
            return "Trace: no events"
        first, last = min(e.start for e in self.events), max(e.stop for e in self.events)
        of = f" of {plural(len(self.ranks), 'rank')}" if self.ranks else ""
        lines = [
            f"Trace: {plural(len(self), 'event')}{of} on {', '.join(_runs(self.devices))} "
            f"in {(last - first) * 1e3:.3g} ms"
        ]
        groups: dict[tuple[str, str], list[Event]] = {}
        for event in sorted(self.events, key=lambda event: event.start):
            met = event.phase == "collective"
            key = (f"{len(event.ranks)} ranks", event.name) if met else (event.direction, event.phase)
            groups.setdefault(key, []).append(event)
        wide = max([14, *(len(what) for _, what in groups)])
        for (way, what), events in groups.items():
            met = events[0].phase == "collective"
            shapes = list(dict.fromkeys(str(list(s)) for e in events for s in e.shapes[:1]))
            listed = ", ".join(shapes[:3]) + (", …" if len(shapes) > 3 else "")
            seconds = (
                sum(e.waited for e in events)
                if met
                else sum(max(e.stop for e in run) - run[0].start for run in _together(events))
            )
            count = len({e.meeting for e in events}) if met else len(events)
            lines.append(
                f"  {way:<8}  {what:<{wide}}  {count:>5} ×  {sum(e.nbytes for e in events):>14,} B"
                f"  {seconds * 1e3:>9.3f} ms{' waited' * met}  {listed}".rstrip()
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

        A row for each device; of ranks a process for each, with a row for each group, and arrows where they meet.
        Times in microseconds since the recording began, or on the ranks' clock.
        """
        return chrome_json(self)


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


@dataclass(frozen=True)
class _Open:
    """A recording that is open, and the numbers of the calls that it has seen, in order.

    rank   the rank that opened it, which it then is for, as in a process of its own; None: it gets everything.
    """

    trace: Trace
    rank: int | None
    numbers: dict[Opened, int] = field(default_factory=dict)


# The recordings that are open, innermost last; every one of them gets every event, from any thread (but see _Open).
recording: list[_Open] | None = None
_lock = threading.Lock()
# Asked of which rank this thread is, and what that rank's clock shows; None while no ranks run.
_ranks: Callable[[], tuple[int, float] | None] | None = None


def tell_ranks(here: Callable[[], tuple[int, float] | None] | None) -> None:
    """From now on ask ``here`` of which rank a thread is (None: of none), with the seconds on that rank's clock.

    None in its place: no ranks run any more.
    """
    global _ranks
    _ranks = here


def _rank_here() -> tuple[int, float] | None:
    return _ranks() if _ranks is not None else None


def begin() -> Trace:
    """Open a recording and return its trace (empty so far)."""
    global recording
    trace, here = Trace(), _rank_here()
    with _lock:
        recording = [*(recording or ()), _Open(trace, here and here[0])]
    return trace


def end(trace: Trace) -> None:
    """Close the recording that :func:`begin` opened, and put its events in order."""
    global recording
    with _lock:
        recording = [other for other in recording or () if other.trace is not trace] or None
        trace.events.sort(key=lambda event: event.start)


def emit(phase: str, device: str, *, started: float, replica: int | None = None, **facts: Any) -> None:
    """Add an event that began at ``started`` (a ``time.perf_counter`` reading) and ends now.

    It belongs to the call, and unless ``replica`` is given to the replica, where this thread is; and to this thread's
    rank, by whose clock it is then timed. Copies inside a verb are not told: they are what the verb consists of, and
    its own event counts them.
    """
    here = _place.get()
    if phase == "copy" and here.verb is not None:
        return
    seconds = perf_counter() - started
    rank, now = _rank_here() or (None, 0.0)
    replica = here.replica if replica is None else replica
    event = Event(phase, device, seconds=seconds, replica=replica, rank=rank, **facts)
    with _lock:
        for open_ in recording or ():
            if open_.rank not in (None, rank):
                continue
            trace, numbers = open_.trace, open_.numbers
            call = None if here.call is None else numbers.setdefault(here.call, len(numbers))
            parent = numbers.get(here.call.parent) if here.call and here.call.parent else None
            start = started - trace.origin if rank is None else now - seconds
            trace.events.append(replace(event, start=start, call=call, parent=parent))


def emit_at(event: Event) -> None:
    """Add an event of a rank whose ``start`` and ``seconds`` are already those of that rank's clock."""
    with _lock:
        for open_ in recording or ():
            if open_.rank in (None, event.rank):
                open_.trace.events.append(event)


def sample(found: MemorySample) -> None:
    """Add how much memory a rank's GPU had in use at one moment of its clock."""
    with _lock:
        for open_ in recording or ():
            if open_.rank in (None, found.rank):
                open_.trace.samples.append(found)
