"""Telling of events: code that does the work calls :func:`emit`, and each recording that is open gets the event.

``labkit.record()`` holds a recording open. With none open, :data:`recording` is None and nothing is spent.

Each thread knows its :class:`Place`: in which data-parallel call it is, on which replica, inside which verb. So an
event is told where it belongs when it happens. While ranks run, :func:`tell_ranks` says of which rank a thread is, and
the events of a rank are timed by its own clock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

from .events import Event
from .memory import MemorySample
from .trace import Trace


class Opened:
    """A data-parallel call that has begun; ``parent`` is the call in one of whose replicas that was."""

    def __init__(self) -> None:
        self.parent = _place.get().call


@dataclass(frozen=True)
class CallPlace:
    """The place of a thread: its call, its replica, and its verb, a phase that may have copies of its own."""

    call: Opened | None = None
    replica: int | None = None
    verb: str | None = None


_NOWHERE = CallPlace()
_place: ContextVar[CallPlace] = ContextVar("labkit_place", default=_NOWHERE)


def place() -> CallPlace:
    """The place of this thread now."""
    return _place.get()


@contextmanager
def set_place(here: CallPlace) -> Iterator[None]:
    """Inside, this thread is at ``here``."""
    token = _place.set(here)
    try:
        yield
    finally:
        _place.reset(token)


@dataclass(frozen=True)
class _Open:
    """A recording that is open, and the numbers of the calls that it has seen, in order.

    rank   the rank that opened it. It gets that rank's events alone, as in a process of its own; None: all events.
    """

    trace: Trace
    rank: int | None
    numbers: dict[Opened, int] = field(default_factory=dict)


class EventClock:
    """What events are timed by: this computer's clock."""

    now: Callable[[], float] = staticmethod(perf_counter)

    def span_of_event(self, started: float, phase: str, device: str, **facts: Any) -> tuple[float, float]:
        """Return when an event began that ends now, having begun when :meth:`now` said ``started``; and its seconds."""
        return started, perf_counter() - started


clock = EventClock()


def time_by(other: EventClock) -> EventClock:
    """Time events by ``other`` from now on; return the clock before."""
    global clock
    before, clock = clock, other
    return before


# The recordings that are open, innermost last; every one of them gets every event, from any thread (but see _Open).
recording: list[_Open] | None = None
_lock = threading.Lock()
# Says which rank this thread is of, and the time of that rank's clock; None while no ranks run.
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
    """Add an event that began at ``started`` (a reading of :data:`clock`) and ends now.

    It belongs to the call, and unless ``replica`` is given to the replica, where this thread is; and to this thread's
    rank, by whose clock it is then timed. Copies inside a verb are not told: its own event counts
    them.
    """
    here = _place.get()
    if phase == "copy" and here.verb is not None:
        return
    began, seconds = clock.span_of_event(started, phase, device, **facts)
    rank, now = _rank_here() or (None, 0.0)
    replica = here.replica if replica is None else replica
    event = Event(phase, device, seconds=seconds, replica=replica, rank=rank, **facts)
    with _lock:
        for open_ in _open_for(rank):
            trace, numbers = open_.trace, open_.numbers
            call = None if here.call is None else numbers.setdefault(here.call, len(numbers))
            parent = numbers.get(here.call.parent) if here.call and here.call.parent else None
            start = began - trace.origin if rank is None else now - seconds
            trace.events.append(replace(event, start=start, call=call, parent=parent))


def emit_at(event: Event) -> None:
    """Add an event of a rank whose ``start`` and ``seconds`` are already those of that rank's clock."""
    with _lock:
        for open_ in _open_for(event.rank):
            open_.trace.events.append(event)


def sample(found: MemorySample) -> None:
    """Add a sample of the memory that a rank's GPU had in use at one moment of its clock."""
    with _lock:
        for open_ in _open_for(found.rank):
            open_.trace.samples.append(found)


def _open_for(rank: int | None) -> Iterator[_Open]:
    """The open recordings that get the events of ``rank``."""
    return (open_ for open_ in recording or () if open_.rank in (None, rank))
