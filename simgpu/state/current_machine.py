"""The machine that torch sees now, and the GPU on which the present call of a thread is at work.

The machine's mode knows where a call runs, and places its results. C++ may call Python before that (a dispatch mode, a
hook that packs saved tensors). There tensors have no mark yet, and their device is that of the values: both stand for
the GPU of the call.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import torch

from labkit.base.language import wrong
from labkit.base.patches import Patch

from .. import hooks
from .gpu import Gpu, TheMachine

_active: TheMachine | None = None


def machine_in_use() -> TheMachine | None:
    """The machine that torch sees now."""
    return _active


def require_machine() -> TheMachine:
    """The machine in use, for things that make no sense without one: a stream, an event."""
    if _active is None:
        raise wrong(RuntimeError, en="no simulated machine is in use any more", zh="已经没有模拟机器在使用")
    return _active


def call_with_machine(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call ``function`` with the machine in sight of this thread, if one is in use.

    What C++ calls back (hooks, unpacked tensors) comes with the function modes off, or on a thread of the engine.
    """
    if _active is None:
        return function(*args, **kwargs)
    with _active.use_in_thread():
        return function(*args, **kwargs)


def without_function_modes(function: Callable[..., Any]) -> Callable[..., Any]:
    """Run ``function`` as C++ would: none of its own tensor operations pass the function modes."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        with torch._C.DisableTorchFunction():
            return function(*args, **kwargs)

    return run


def replaces(owner: Any, *names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Let the decorated function stand for functions of ``owner`` while a machine is in use.

    It is given the machine, the real function and the call's arguments. Who took the name then calls the real function
    when no machine is in use any more.
    """

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        def standing(real: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            return real(*args, **kwargs) if _active is None else function(_active, real, *args, **kwargs)

        hooks.patches.add(lambda machine: (Patch.wrap(owner, name, standing) for name in names))
        return function

    return register


def set_machine_in_use(machine: TheMachine | None) -> None:
    """From now on :func:`machine_in_use` is ``machine``. Only :mod:`.machine` says so."""
    global _active
    _active = machine


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
