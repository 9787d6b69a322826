"""A barrier that proves concurrency: each caller waits until all have arrived, and receives a different number.

In the sandbox the judge counts the waiting threads from outside (:class:`.sandbox.workers.JudgeMeeting`) and chooses
numbers that no worker can guess. In a notebook, the barrier is in the answer's process.
"""

from __future__ import annotations

import inspect
import multiprocessing
import os
import struct
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from labkit.turns import here

MEETING_FD = 5  # the number of the judge's pipe in each worker (:mod:`.sandbox.inside.fork_server`)
NUMBER = struct.Struct(">q")


def globals_of(function: Any) -> dict[str, Any]:
    """Return the globals of a student's function, which may be decorated, a partial or a callable object."""
    found: Any = inspect.unwrap(getattr(function, "func", function))
    return getattr(found, "__globals__", None) or getattr(type(found).__call__, "__globals__", {})


class MeetingPoint:
    """``MeetingPoint(3)()`` returns 1, 2 or 3 if three threads or forked processes meet within two seconds, else 0."""

    def __init__(self, count: int) -> None:
        self._all = multiprocessing.Barrier(count)

    def __call__(self) -> int:
        wait = partial(self._all.wait, 2)
        try:
            # Replicas on simulated GPUs take turns: yield the turn while waiting.
            return (wait() if here.task is None else here.task.run_outside(wait)) + 1
        except threading.BrokenBarrierError:
            return 0


def judge_meeting_point(pipe: int) -> Callable[[], int]:
    """Return a function like a :class:`MeetingPoint`, which waits for a number of the judge in ``pipe``."""
    read, unpack = os.read, NUMBER.unpack  # bound before an answer can replace them
    return lambda: int(unpack(read(pipe, NUMBER.size))[0])
