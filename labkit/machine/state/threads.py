"""Threads on the simulated machine: every new one sees it, and replicas take turns.

PyTorch runs the replicas of a data-parallel call in threads that race. Here, threads started from a
function called ``parallel_apply`` (PyTorch's, labkit's, or a copy of either in somebody's code) take turns
in a fixed order (see :mod:`labkit.base.turns`), so that what they print is the same every time.
"""

from __future__ import annotations

import _thread
import ctypes
import os
import sys
import threading
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING

from ...base.patches import Patch
from ...base.turns import Turns
from ..in_use import machine_in_use

if TYPE_CHECKING:
    from ..machine import Machine

_M_ARENA_MAX = -8  # malloc.h


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


def patches(machine: Machine) -> Iterator[Patch]:
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

    yield Patch(threading.Thread, "start", start_in_turn)
    yield Patch(threading.Thread, "_bootstrap_inner", bootstrap_inner)

    start_new = _thread.start_new_thread

    def start_new_thread(function, args, kwargs=None):
        def entered(*args, **kwargs):
            machine = machine_in_use()
            if machine is None:
                return function(*args, **kwargs)
            with machine.entered():
                return function(*args, **kwargs)

        return start_new(entered, args, kwargs or {})

    yield Patch(_thread, "start_new_thread", start_new_thread)


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
