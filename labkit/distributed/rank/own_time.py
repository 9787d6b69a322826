"""The time of a thread: what passes while it has a processor, or sleeps, and not while other programs have them all.

On a busy computer, the time in which a thread is ready and has no processor would make stragglers of ranks by chance.
Linux counts it; elsewhere a thread's time is that of the clock on the wall.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from time import perf_counter

# Its second number: for how many nanoseconds the thread that opens it has been ready without a processor.
_FILE = "/proc/thread-self/schedstat"


class OwnTime:
    """The clock of the thread that makes it, in seconds, and never goes back for that one; any thread may read it."""

    def __init__(self) -> None:
        self.process, self._thread = os.getpid(), threading.get_ident()
        self._ready, self._last = 0.0, 0.0
        try:
            self._file = os.open(_FILE, os.O_RDONLY)
        except OSError:
            self._file = -1

    def now(self) -> float:
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


here = threading.local()


def own_time() -> OwnTime:
    """The clock of this thread."""
    found: OwnTime | None = getattr(here, "time", None)
    if found is None or found.process != os.getpid():  # a child's thread is another
        found = here.time = OwnTime()
    return found
