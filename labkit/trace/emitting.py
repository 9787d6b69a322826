"""Emit events: code that does the work calls :func:`emit`, and each open recording gets the event.

``labkit.record()`` opens a recording. Without one, :data:`recording` is None and nothing is spent.

Each thread has a :class:`CallPlace`: its data-parallel call, replica and verb, which :func:`emit` adds to the event.
While ranks run, :func:`set_rank_source` provides the rank of a thread, and the rank's own clock times its events.
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
    """A data-parallel call that has begun; ``parent`` is the call whose replica made it, if any."""

    def __init__(self) -> None:
        self.parent = _place.get().call


@dataclass(frozen=True)
class CallPlace:
    """A thread's place: the call, the replica, and the verb, a phase that may copy tensors itself."""

    call: Opened | None = None
    replica: int | None = None
    verb: str | None = None


_NOWHERE = CallPlace()
_place: ContextVar[CallPlace] = ContextVar("labkit_place", default=_NOWHERE)


def place() -> CallPlace:
    """Return the place of this thread."""
    return _place.get()


@contextmanager
def set_place(here: CallPlace) -> Iterator[None]:
    """Put this thread at ``here`` inside the context."""
    token = _place.set(here)
    try:
        yield
    finally:
        _place.reset(token)


@dataclass(frozen=True)
class _Open:
    """An open recording, and the calls it has seen, numbered in order.

    rank   the rank that opened it, which gets that rank's events alone, as in a process of its own; None: all events.
    """

    trace: Trace
    rank: int | None
    numbers: dict[Opened, int] = field(default_factory=dict)


class EventClock:
    """The clock of events: this computer's."""

    now: Callable[[], float] = staticmethod(perf_counter)

    def span_of_event(self, started: float, phase: str, device: str, **facts: Any) -> tuple[float, float]:
        """Return the begin and the seconds of an event that ends now; ``started`` is a reading of :meth:`now`."""
        return started, perf_counter() - started


clock = EventClock()


def time_by(other: EventClock) -> EventClock:
    """Time events by ``other`` from now on; return the clock used before."""
    global clock
    before, clock = clock, other
    return before


# The open recordings, innermost last. Each gets every event, from any thread, unless a rank opened it (see _Open).
recording: list[_Open] | None = None
_lock = threading.Lock()
# Returns the current thread's rank and the time on the rank's clock; None while no ranks run.
_ranks: Callable[[], tuple[int, float] | None] | None = None


def set_rank_source(rank_and_clock: Callable[[], tuple[int, float] | None] | None) -> None:
    """Set the function that returns the calling thread's rank and that rank's clock in seconds; None removes it.

    The function returns None in a thread that belongs to no rank.
    """
    global _ranks
    _ranks = rank_and_clock


def _rank_here() -> tuple[int, float] | None:
    return _ranks() if _ranks is not None else None


def begin() -> Trace:
    """Open a recording and return its trace, still empty."""
    global recording
    trace, here = Trace(), _rank_here()
    with _lock:
        recording = [*(recording or ()), _Open(trace, here and here[0])]
    return trace


def end(trace: Trace) -> None:
    """Close a recording and sort its events."""
    global recording
    with _lock:
        recording = [other for other in recording or () if other.trace is not trace] or None
        trace.events.sort(key=lambda event: event.start)


def emit(phase: str, device: str, *, started: float, replica: int | None = None, **facts: Any) -> None:
    """Add an event that began at ``started`` (a reading of :data:`clock`) and ends now.

    The event gets this thread's call and, unless given, replica; and its rank, whose clock then times the event. Copies
    inside a verb are left out: the verb's own event counts them.
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
    """Add an event of a rank whose ``start`` and ``seconds`` are on that rank's clock."""
    with _lock:
        for open_ in _open_for(event.rank):
            open_.trace.events.append(event)


def sample(found: MemorySample) -> None:
    """Add a sample of a rank's GPU memory in use."""
    with _lock:
        for open_ in _open_for(found.rank):
            open_.trace.samples.append(found)


def _open_for(rank: int | None) -> Iterator[_Open]:
    """Yield the open recordings that get the events of ``rank``."""
    return (open_ for open_ in recording or () if open_.rank in (None, rank))
