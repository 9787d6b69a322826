"""A thread that takes turns with another wakes on the core of the one that woke it.

A system wakes a thread on a core that idles. For two that take turns that is the wrong one: its caches hold nothing of
the other's work, and an exchange that takes a few microseconds costs twice as much. Awake, a thread may run wherever it
could before. Linux only; elsewhere nothing happens.
"""

from __future__ import annotations

import ctypes
import os
import threading
from functools import cache
from typing import Any


class Sleeper:
    """A thread that another wakes: :meth:`rest` and :meth:`rise` are its own to call, :meth:`beckon` the other's."""

    __slots__ = ("_beckoned", "_cores", "_thread")

    def __init__(self) -> None:
        self._thread, self._beckoned = 0, False
        self._cores: set[int] = set()

    def rest(self) -> None:
        """It is about to sleep."""
        if _core() is not None:
            self._thread, cores = threading.get_native_id(), os.sched_getaffinity(0)
            if not self._beckoned:  # else the other was quicker, and these are the cores to which it was sent
                self._cores = cores

    def beckon(self) -> None:
        """Let it wake on the caller's core, if it may run there. The caller wakes it next, and then sleeps."""
        core = _core()
        if core is not None and len(self._cores) > 1 and (here := core()) in self._cores:
            self._beckoned = True
            try:
                os.sched_setaffinity(self._thread, (here,))
            except OSError:  # it is no more, or that is not allowed
                self._cores = set()

    def rise(self) -> None:
        """It is awake."""
        if self._beckoned:
            self._beckoned = False
            if self._cores:
                os.sched_setaffinity(0, self._cores)


@cache
def _core() -> Any:
    """The function that says which core the caller runs on; None where threads cannot be sent to one."""
    if not hasattr(os, "sched_setaffinity"):
        return None
    return getattr(ctypes.PyDLL(None), "sched_getcpu", None)
