"""A rank's numbers, GPUs and clock, as a recording uses them.

Clocks run as if all ranks ran at the same time, each on its own processor. In a collective, each clock is set to the
latest one's. A clock counts the time in which its thread has a processor or sleeps. It leaves out the time in which the
thread is ready and other programs have the processors, which would make ranks stragglers by chance. Linux counts this
time; elsewhere clocks use wall time.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from time import perf_counter
from typing import Any

from simgpu import Gpu

from ..calls.call import CollectiveCall
from . import flight_recorder

# The file's second number: nanoseconds in which the thread that opens it was ready without a processor.
_FILE = "/proc/thread-self/schedstat"


class ThreadClock:
    """A clock of one thread, in seconds. Any thread may read it; it never goes back for its own."""

    def __init__(self) -> None:
        self.process, self._thread = os.getpid(), threading.get_ident()
        self._ready, self._last = 0.0, 0.0
        try:
            self._file = os.open(_FILE, os.O_RDONLY)
        except OSError:
            self._file = -1

    def seconds_run(self) -> float:
        """Return the seconds that the thread has run."""
        # The thread may lose the processor between the two readings. With the time first, the result is too early, and
        # the last result is returned instead; with the time last, an unfinished wait would count.
        at = perf_counter()
        if self._file >= 0:
            with suppress(OSError):  # the thread may have ended
                self._ready = int(os.pread(self._file, 80, 0).split()[1]) * 1e-9
        found = at - self._ready
        if threading.get_ident() == self._thread:
            found = self._last = max(found, self._last)
        return found

    # A default argument keeps the function: at the end of Python, globals of this module are gone.
    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        if self._file >= 0:
            close(self._file)


_thread_state = threading.local()


def thread_clock() -> ThreadClock:
    """Return the clock of this thread."""
    found: ThreadClock | None = getattr(_thread_state, "time", None)
    if found is None or found.process != os.getpid():  # a forked child has another thread
        found = _thread_state.time = ThreadClock()
    return found


class RankClock:
    """Sets ranks' clocks by this computer's time. :mod:`..planning.timing` has one that uses a model."""

    def make_thread_clock(self) -> Any:
        return thread_clock()

    def wait_until(self, rank: TimedRank, time: float) -> None:
        """Set the clock of ``rank`` to ``time`` at the end of a wait."""
        rank.advance_to(time)

    def return_at(self, rank: TimedRank, began: float, seconds: float) -> None:
        """Set the clock of ``rank`` after a call that began at ``began`` and blocked for ``seconds``."""
        rank.wait_until(began + seconds)

    def finish(self, slot: Any, seconds: float) -> float:
        """Return when a collective ends whose computation took ``seconds`` here."""
        return float(slot.met + seconds)

    def receive(self, rank: TimedRank, slot: Any, began: float, *, by_cpp: bool) -> None:
        """Let ``rank`` receive the values of a collective after a wait since ``began``."""
        rank.wait_until(slot.finished)


_OWN = RankClock()
_clock_of: Callable[[TimedRank], RankClock] | None = None


@contextmanager
def use_rank_clocks(clock_of: Callable[[TimedRank], RankClock]) -> Iterator[None]:
    """Give each rank the clock ``clock_of(rank)`` when its turn begins, in this context."""
    global _clock_of
    before, _clock_of = _clock_of, clock_of
    try:
        yield
    finally:
        _clock_of = before


class TimedRank:
    """A rank and its clock, which stands still until :meth:`begin_turn`.

    number        the global rank.
    local, node   the rank on its node (LOCAL_RANK), and the number of the node.
    gpus          the GPUs of its node.
    unreported    collectives to report to the recording: nobody has waited for them yet.
    """

    def __init__(self, number: int, local: int, node: int, gpus: tuple[Gpu, ...] = ()) -> None:
        self.number, self.local, self.node, self.gpus = number, local, node, gpus
        self.passes = 0  # of a wrapped model's forward, in training
        self.chose_gpus = False  # whether the rank has set CUDA_VISIBLE_DEVICES
        self.unreported: list[Any] = []
        # Enqueued calls that have not run (see .enqueued_calls), and the line where the host waits for them.
        self.enqueued: list[Any] = []
        self.reads: str | None = None
        self._has_called = False
        # The recorder of the rank's calls; None before the first call, or if the environment doesn't ask for one.
        self.flight: flight_recorder.FlightRecorder | None = None
        self.time = _OWN
        self._ahead = 0.0
        # Seconds run in earlier turns; the clock of the thread with the turn, and its time when the turn began. One
        # tuple, because other threads of the rank read it.
        self._ran: tuple[float, Any, float] = (0.0, None, 0.0)
        # Wall time when the rank fell asleep, while it sleeps and others have turns.
        self.asleep: float | None = None

    @property
    def gpu(self) -> Gpu | None:
        """The rank's own GPU; None if the node has fewer GPUs than processes."""
        at = 0 if self.chose_gpus else self.local
        return self.gpus[at] if at < len(self.gpus) else None

    def record_call(self, call: CollectiveCall) -> None:
        """Record ``call``, which the rank makes now, if the environment asks for a Flight Recorder."""
        if not self._has_called:  # until then a script may set the variables
            self._has_called, self.flight = True, flight_recorder.make_recorder(self.number)
        if self.flight is not None:
            self.flight.record_call(call, self.clock())

    def clock(self) -> float:
        """Return the seconds on the rank's clock: its own running time, and its waits for other ranks."""
        asleep = None if self._ran[1] else self.asleep
        seconds = self._busy_seconds() + self._ahead + (0.0 if asleep is None else perf_counter() - asleep)
        return round(seconds, 12)  # the last bits of a modelled time depend on the order of the turns

    @contextmanager
    def pause_clock(self) -> Iterator[None]:
        """Stop the clock in this context."""
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
        """Set the clock forward to ``time`` at the end of a wait, by the rank's RankClock."""
        self.time.wait_until(self, time)

    def advance_to(self, time: float) -> None:
        """Set the clock forward to ``time``; never back."""
        self._ahead += max(0.0, time - self.clock())

    def set_clock(self, time: float) -> None:
        _, own, _ = self._ran
        self._ran, self._ahead = (0.0, own, 0.0 if own is None else own.seconds_run()), time

    def begin_turn(self) -> None:
        self.time = _OWN if _clock_of is None else _clock_of(self)
        own = self.time.make_thread_clock()
        self._ran = self._busy_seconds(), own, own.seconds_run()

    def end_turn(self) -> None:
        self._ran = self._busy_seconds(), None, 0.0

    def report_remaining(self) -> None:
        """Report completed collectives without a ``wait()``, when the rank has ended."""
        for work in list(self.unreported):
            work.report_if_done()
        self.unreported.clear()
