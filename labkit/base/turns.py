"""Replicas that take turns, and how it is noticed that one of them waits for another.

On real GPUs replicas race. A machine that simulates them runs one at a time, in a fixed order, so that what
they print is the same every time; it says so here, and labkit's engine then needs no thread for each. A
replica that waits for another one (a synchronised batch norm does) passes its turn on, so that taking turns
cannot deadlock.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

# A replica that uses no processor time for this many seconds is waiting for another one.
PATIENCE = 0.25
_POLL = 0.05

# Whether replicas run one after another in device order, as a simulated machine says while it is in use.
in_device_order = False


def run_one_by_one(count: int, here: Callable[[int], None], apart: Callable[[int], None]) -> None:
    """Call ``here(0)`` … ``here(count - 1)`` one after another in this thread.

    If one of them waits (for another, most likely), those that have not begun are called meanwhile in threads
    of their own, as ``apart(replica)``. Not giving each a thread from the start is worth it: a fresh one
    has cold caches, and OpenMP makes it a new pool of its own.
    """
    waiting, lock, over = deque(range(count)), threading.Lock(), threading.Event()
    helpers: list[threading.Thread] = []
    clock = clock_of(threading.get_ident())

    def take() -> int | None:
        with lock:
            return waiting.popleft() if waiting else None

    def watch() -> None:
        used = processor_time(clock)
        while not over.wait(PATIENCE):
            before, used = used, processor_time(clock)
            if used != before:
                continue
            with lock:
                rest = list(waiting)
                waiting.clear()
                helpers.extend(
                    threading.Thread(target=apart, args=(replica,), name=f"replica {replica}")
                    for replica in rest
                )
                for helper in helpers:
                    helper.start()
            return

    watcher = threading.Thread(target=watch, name="labkit watcher", daemon=True)
    watcher.start()
    try:
        while (replica := take()) is not None:
            here(replica)
    finally:
        over.set()
        watcher.join()
        for helper in helpers:
            helper.join()


def can_run_one_by_one() -> bool:
    """Whether replicas take turns in device order here, and a waiting one would be noticed."""
    return in_device_order and clock_of(threading.get_ident()) is not None


def clock_of(thread: int) -> int | None:
    """The processor-time clock of a thread that is alive; None where there is none (Windows, macOS)."""
    try:
        return time.pthread_getcpuclockid(thread)
    except (AttributeError, OSError):
        return None


def processor_time(clock: int) -> float:
    """Processor seconds of a :func:`clock_of`; 0 when its thread has ended."""
    try:
        return time.clock_gettime(clock)
    except OSError:
        return 0.0


class Turns:
    """The turns of the threads that one ``parallel_apply`` starts."""

    def __init__(self, order: tuple[int, ...] | None) -> None:
        self._order = order
        self._changed = threading.Condition()
        self._started = 0
        self._waiting: set[int] = set()
        self._holder: int | None = None
        self._holder_clock: int | None = None
        self._over: set[int] = set()
        # Whether those that the order names and nobody has started are still waited for.
        self._expecting = True

    def join(self) -> int:
        """Take a place; returns its number, counted from 0."""
        with self._changed:
            place, self._started = self._started, self._started + 1
            self._waiting.add(place)
        return place

    def wait(self, place: int) -> None:
        """Return when it is this place's turn."""
        last_use, since = None, time.monotonic()
        with self._changed:
            while not self._may_run(place):
                if not self._changed.wait(_POLL):
                    if self._holder is None:
                        self._expecting = False  # there are fewer replicas than the order names
                        continue
                    use = self._holder_time()
                    if use != last_use or use is None:
                        last_use, since = use, time.monotonic()
                    elif time.monotonic() - since > PATIENCE and place == self._next():
                        break  # the holder waits for somebody: run beside it
            self._waiting.discard(place)
            self._holder = place
            self._holder_clock = clock_of(threading.get_ident())

    def done(self, place: int) -> None:
        """End this place's turn."""
        with self._changed:
            self._over.add(place)
            if self._holder == place:
                self._holder = None
            self._changed.notify_all()

    def _may_run(self, place: int) -> bool:
        return self._holder is None and place == self._next()

    def _next(self) -> int | None:
        """Whose turn is next: the first in the order that has not run. With no order, by number."""
        if self._order is None:
            return min(self._waiting, default=None)
        for place in self._order:
            if place in self._waiting:
                return place
            if self._expecting and place not in self._over and place >= self._started:
                return None  # it is still to be started
        return min(self._waiting, default=None)

    def _holder_time(self):
        """Processor seconds the holder has used; 0 where that cannot be read or nobody holds the turn."""
        if self._holder is None or self._holder_clock is None:
            return 0
        return processor_time(self._holder_clock)
