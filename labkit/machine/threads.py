"""Threads on the simulated machine: every new one sees it, and replicas take turns.

PyTorch runs the replicas of a data-parallel call in threads that race. Here, threads started from a
function called ``parallel_apply`` (PyTorch's, labkit's, or a copy of either in somebody's code) take turns
in a fixed order, so that what they print is the same every time. A replica that waits for another one (a
synchronised batch norm does) passes its turn on, so taking turns cannot deadlock.
"""

from __future__ import annotations

import _thread
import ctypes
import os
import sys
import threading
import time
from functools import cache

# A replica that uses no processor time for this many seconds is waiting for another one.
PATIENCE = 0.25
_POLL = 0.05
_M_ARENA_MAX = -8  # malloc.h


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
            self._holder_clock = _own_clock()

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
        try:
            return time.clock_gettime(self._holder_clock)
        except OSError:
            return 0


@cache
def share_one_arena() -> None:
    """Let glibc's malloc give new threads the memory that old ones warmed up.

    By default a thread's own arena starts cold, and every buffer of a replica costs page faults: a forward
    pass of 12 ms took 18 to 20 in a fresh thread, 14 with one arena. Replicas take turns, so they do not
    contend for it. Only the allocator is touched, not torch; a choice made in the environment is respected.
    """
    if not sys.platform.startswith("linux") or {"MALLOC_ARENA_MAX", "GLIBC_TUNABLES"} & os.environ.keys():
        return
    try:
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)
    except (OSError, AttributeError):
        return  # another C library: nothing to gain


def _own_clock():
    try:
        return time.pthread_getcpuclockid(threading.get_ident())
    except (AttributeError, OSError):
        return None


def install(patches, machine_in_use) -> None:
    """Make new threads enter the machine, and replicas take turns."""
    start, bootstrap = threading.Thread.start, threading.Thread._bootstrap_inner

    def start_in_turn(self):
        machine = machine_in_use()
        caller = sys._getframe(1)
        if machine is not None and machine.order != "threads" and caller.f_code.co_name == "parallel_apply":
            turns = machine.turns_of(caller)
            self._labkit_turn = (turns, turns.join())
        return start(self)

    def bootstrap_inner(self):
        machine = machine_in_use()
        if machine is None:
            return bootstrap(self)
        turn = self.__dict__.get("_labkit_turn")
        with machine.entered():
            if turn is None:
                return bootstrap(self)
            return _in_turn(self, bootstrap, *turn)

    patches.set(threading.Thread, "start", start_in_turn)
    patches.set(threading.Thread, "_bootstrap_inner", bootstrap_inner)

    start_new = _thread.start_new_thread

    def start_new_thread(function, args, kwargs=None):
        def entered(*args, **kwargs):
            machine = machine_in_use()
            if machine is None:
                return function(*args, **kwargs)
            with machine.entered():
                return function(*args, **kwargs)

        return start_new(entered, args, kwargs or {})

    patches.set(_thread, "start_new_thread", start_new_thread)


def _in_turn(thread, bootstrap, turns: Turns, place: int):
    """Run the thread when its turn comes. Thread.start() must return first, so only run() waits."""
    run = thread.run

    def run_in_turn():
        turns.wait(place)
        try:
            run()
        finally:
            turns.done(place)

    thread.run = run_in_turn
    try:
        return bootstrap(thread)
    finally:
        # run_in_turn holds the thread: take it out again, or both live until the collector comes.
        thread.__dict__.pop("run", None)
