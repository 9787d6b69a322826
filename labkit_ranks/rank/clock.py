"""A rank as a recording asks for it: its numbers, its GPUs, its clock.

Each rank's clock goes while the rank computes, as if all ranks ran at once, each on a processor of its own; where it
meets others, it goes to the last one's. On a busy computer, the time in which a thread is ready and has no processor
would make stragglers of ranks by chance. So it counts what passes while a thread has a processor, or sleeps, and not
while other programs have them all. Linux counts it; elsewhere a thread's time is that of the clock on the wall.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from time import perf_counter
from types import EllipsisType
from typing import Any, Protocol

from simgpu import Gpu

from ..calls.call import CollectiveCall
from . import flight_recorder

# Its second number: for how many nanoseconds the thread that opens it has been ready without a processor.
_FILE = "/proc/thread-self/schedstat"


class ThreadClock:
    """The clock of the thread that makes it, in seconds, and never goes back for that one; any thread may read it."""

    def __init__(self) -> None:
        self.process, self._thread = os.getpid(), threading.get_ident()
        self._ready, self._last = 0.0, 0.0
        try:
            self._file = os.open(_FILE, os.O_RDONLY)
        except OSError:
            self._file = -1

    def seconds_run(self) -> float:
        # A thread may lose the processor between the two readings. With the time first, it then reads too early a time,
        # and takes that of its last reading; with the time last it would read one that is not over yet.
        at = perf_counter()
        if self._file >= 0:
            with suppress(OSError):  # the thread has ended
                self._ready = int(os.pread(self._file, 80, 0).split()[1]) * 1e-9
        found = at - self._ready
        if threading.get_ident() == self._thread:
            found = self._last = max(found, self._last)
        return found

    # The function is kept: at Python's end the names of this module are gone.
    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        if self._file >= 0:
            close(self._file)


_thread_state = threading.local()


def thread_clock() -> ThreadClock:
    """The clock of this thread."""
    found: ThreadClock | None = getattr(_thread_state, "time", None)
    if found is None or found.process != os.getpid():  # a child's thread is another
        found = _thread_state.time = ThreadClock()
    return found


class RankClock:
    """What the clock of a rank goes by: this computer's time. :mod:`..planning.timing` has one that goes by a model."""

    def make_thread_clock(self) -> Any:
        """Return the seconds that this thread of the rank has run."""
        return thread_clock()

    def wait_until(self, rank: TimedRank, time: float) -> None:
        """Let ``rank`` go on at ``time``: what it waited for is there."""
        rank.advance_to(time)

    def return_at(self, rank: TimedRank, began: float, seconds: float) -> None:
        """Let ``rank`` go on after ``seconds`` in a call that waits, which it made when its clock was at ``began``."""
        rank.wait_until(began + seconds)

    def finish(self, slot: Any, seconds: float) -> float:
        """Return when a collective is done whose values took ``seconds`` here."""
        return float(slot.met + seconds)

    def receive(self, rank: TimedRank, slot: Any, began: float, *, by_cpp: bool) -> None:
        """Let ``rank`` have the values of a collective, for which it has waited since ``began``."""
        rank.wait_until(slot.finished)


_OWN = RankClock()
_clock_of: Callable[[TimedRank], RankClock] | None = None


@contextmanager
def use_rank_clocks(clock_of: Callable[[TimedRank], RankClock]) -> Iterator[None]:
    """Inside, a rank that begins a turn is given the clock ``clock_of(rank)``."""
    global _clock_of
    before, _clock_of = _clock_of, clock_of
    try:
        yield
    finally:
        _clock_of = before


class UnreportedWork(Protocol):
    """A collective of which the recording that is open has not been told."""

    def report_if_done(self) -> None: ...


class TimedRank:
    """A rank and its clock, which stands until :meth:`begin_turn`.

    number        its global rank.
    local, node   its rank on its node (LOCAL_RANK), and the node's number.
    gpus          the GPUs of its node.
    untold        collectives of which nothing has been told yet: nobody has waited for them.
    """

    def __init__(self, number: int, local: int, node: int, gpus: tuple[Gpu, ...] = ()) -> None:
        self.number, self.local, self.node, self.gpus = number, local, node, gpus
        self.passes = 0  # of a wrapped model's forward, in training
        self.chose_gpus = False  # whether it has said itself which GPUs it sees
        self.unreported: list[UnreportedWork] = []
        # Calls that it has enqueued and that have not run (see .enqueued), and where its host waits for them.
        self.enqueued: list[Any] = []
        self.reads: str | None = None
        # The environment is asked at the first call: a script may set it.
        self._flight: flight_recorder.FlightRecorder | EllipsisType | None = ...
        self.time = _OWN
        self._ahead = 0.0
        # What it ran in earlier turns; the clock of the thread that has this one, and when by that it began. In one
        # piece, for other threads of the rank read it.
        self._ran: tuple[float, Any, float] = (0.0, None, 0.0)
        # While it sleeps and others have turns: when that began, by the clock on the wall.
        self.asleep: float | None = None

    @property
    def gpu(self) -> Gpu | None:
        """Its own: that of its number on its node; None for one of more processes than there are GPUs."""
        at = 0 if self.chose_gpus else self.local
        return self.gpus[at] if at < len(self.gpus) else None

    def record_call(self, call: CollectiveCall) -> None:
        """It makes this call."""
        if self._flight is ...:
            self._flight = flight_recorder.make_recorder(self.number)
        if self._flight is not None:
            self._flight.record_call(call, self.clock())

    @property
    def flight(self) -> flight_recorder.FlightRecorder | None:
        """The recorder of its calls; None where it has made none, or nobody asks for one."""
        return None if self._flight is ... else self._flight

    def clock(self) -> float:
        """Seconds on this rank's clock: what it ran itself, and what it stood waiting for others."""
        asleep = None if self._ran[1] else self.asleep
        return self._busy_seconds() + self._ahead + (0.0 if asleep is None else perf_counter() - asleep)

    @contextmanager
    def pause_clock(self) -> Iterator[None]:
        """A context inside which its clock stands."""
        before = self._busy_seconds()
        try:
            yield
        finally:
            over = self._busy_seconds() - before
            spent, own, since = self._ran
            self._ran = spent - over, own, since

    def _busy_seconds(self) -> float:
        spent, own, since = self._ran
        return spent + (0.0 if own is None else own.seconds_run() - since)

    def wait_until(self, time: float) -> None:
        """Let it go on at ``time``, unless its clock is later."""
        self.time.wait_until(self, time)

    def advance_to(self, time: float) -> None:
        """Let its clock be at ``time``, unless it is later."""
        self._ahead += max(0.0, time - self.clock())

    def set_clock(self, time: float) -> None:
        """Let its clock be at ``time``, exactly."""
        _, own, _ = self._ran
        self._ran, self._ahead = (0.0, own, 0.0 if own is None else own.seconds_run()), time

    def begin_turn(self) -> None:
        self.time = _OWN if _clock_of is None else _clock_of(self)
        own = self.time.make_thread_clock()
        self._ran = self._busy_seconds(), own, own.seconds_run()

    def end_turn(self) -> None:
        self._ran = self._busy_seconds(), None, 0.0

    def report_remaining(self) -> None:
        """Tell of the collectives that are done and that nobody has waited for: it has ended."""
        for work in list(self.unreported):
            work.report_if_done()
        self.unreported.clear()
