"""The GPU on which the present call of a thread is at work.

The machine's mode knows where a call runs, and places its results. C++ may call Python before that (a dispatch mode, a
hook that packs saved tensors). There tensors have no mark yet, and their device is that of the values: both stand for
the GPU of the call.
"""

from __future__ import annotations

import threading

from .gpu import Gpu


class _Work(threading.local):
    gpu: Gpu | None = None
    # Whether all tensors of the call are on that GPU. One without a mark is then an intermediate result, and there too.
    whole = False
    # Whether the engine is at work: it checks devices itself, and no call of Python's names one.
    engine = False
    # The GPU that the engine's last operator was on.
    last: Gpu | None = None


work = _Work()


class at_work:
    """Context manager: inside, this thread is at work on ``gpu`` (None: the host, or several devices).

    whole    whether all tensors of the call are there.
    engine   whether autograd's engine calls, and not Python.
    """

    __slots__ = ("_before", "_now")

    def __init__(self, gpu: Gpu | None, whole: bool = False, engine: bool = False) -> None:
        self._now = gpu, whole, engine

    def __enter__(self) -> None:
        self._before = work.gpu, work.whole, work.engine
        work.gpu, work.whole, work.engine = self._now

    def __exit__(self, *exc_info: object) -> None:
        work.gpu, work.whole, work.engine = self._before
