"""Call a student's answers in the process of their notebook, for checks and for nbgrader."""

from __future__ import annotations

import gc
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import _lru_cache_wrapper
from typing import Any

from .judging import Engine, Reply
from .meeting import MeetingPoint

_CPU = 5.0  # CPU seconds for a call of an answer, unless the judge sets a limit


class _TooLong(BaseException):
    """Raised when the CPU limit is reached. ``except Exception`` in an answer does not catch it."""


def call_in_kernel(answers: Mapping[str, Any]) -> Engine:
    """Return an engine that calls the answers in this kernel, and limits CPU time where possible."""

    def engine(driver: Callable[..., Any], data: dict[str, Any], cpu: float | None, meet: int) -> Reply:
        _clear_caches()
        met = {"meet": MeetingPoint(meet)} if meet else {}
        try:
            with _limit_cpu(cpu or _CPU):
                return Reply(driver(answers, **data, **met), met=tuple(range(1, meet + 1)))
        except _TooLong:
            return Reply.none("cpu")
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            return Reply.from_error(type(error).__name__, str(error))

    return engine


def _clear_caches() -> None:
    """Empty the caches of the notebook's functions: their tensors are of GPUs that no longer exist."""
    for one in gc.get_objects():
        if type(one) is _lru_cache_wrapper and one.__module__ == "__main__":
            one.cache_clear()


@contextmanager
def _limit_cpu(seconds: float) -> Iterator[None]:
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: object) -> None:
        raise _TooLong

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
