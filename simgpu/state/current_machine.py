"""The machine in use, and the GPU on which this thread's current call works.

The machine's mode knows where a call runs, and marks its results. C++ may call Python earlier (a dispatch mode, a hook
that packs saved tensors). There, a tensor without a mark and the CPU as a device both mean the GPU of the call.
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
    """Return the machine in use; None without a machine."""
    return _active


def require_machine() -> TheMachine:
    """Return the machine in use, or raise: streams and events need one."""
    if _active is None:
        raise wrong(RuntimeError, en="no simulated machine is in use any more", zh="已经没有模拟机器在使用")
    return _active


def call_with_machine(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call ``function`` with the machine's mode on, if a machine is in use.

    C++ calls back (hooks, unpacking of saved tensors) with function modes off, or on a thread of the engine.
    """
    if _active is None:
        return function(*args, **kwargs)
    with _active.use_in_thread():
        return function(*args, **kwargs)


def without_function_modes(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate ``function`` to run as C++ would: its tensor operations pass no function mode."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        with torch._C.DisableTorchFunction():
            return function(*args, **kwargs)

    return run


def replaces(owner: Any, *names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Replace functions of ``owner`` by the decorated function while a machine is in use.

    Its arguments are the machine, the real function and those of the call. Code that kept the replacement calls the
    real function once no machine is in use.
    """

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        def replacement(real: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            return real(*args, **kwargs) if _active is None else function(_active, real, *args, **kwargs)

        hooks.patches.add(lambda machine: [Patch.wrap(owner, name, replacement) for name in names])
        return function

    return register


def set_machine_in_use(machine: TheMachine | None) -> None:
    """Make ``machine`` the one in use. Only :mod:`.machine` calls this."""
    global _active
    _active = machine


class _Work(threading.local):
    gpu: Gpu | None = None
    # Whether all tensors of the call are on that GPU. One without a mark is then an intermediate result on it.
    whole = False
    # Whether autograd's engine runs, which checks devices itself.
    engine = False
    # The GPU of the engine's last operator.
    last: Gpu | None = None


work = _Work()


class at_work:
    """Context manager in which this thread works on ``gpu`` (None: the host, or several devices).

    A failed allocation for a tensor raises CUDA's error.

    whole    whether all tensors of the call are on ``gpu``.
    engine   whether autograd's engine makes the call, not Python.
    """

    __slots__ = ("_before", "_now")

    def __init__(self, gpu: Gpu | None, whole: bool = False, engine: bool = False) -> None:
        self._now = gpu, whole, engine

    def __enter__(self) -> None:
        self._before = work.gpu, work.whole, work.engine
        work.gpu, work.whole, work.engine = self._now

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        work.gpu, work.whole, work.engine = self._before
        gpu = self._now[0]
        if gpu is not None and isinstance(error, RuntimeError):
            raised = gpu.translate_error(error)
            if raised is not error:
                raise raised from None
