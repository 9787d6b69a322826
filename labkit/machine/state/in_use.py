"""The machine that torch sees now."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from ...base.language import say
from .gpu import TheMachine

_active: TheMachine | None = None


def machine_in_use() -> TheMachine | None:
    """The machine that torch sees now."""
    return _active


def machine_here() -> TheMachine:
    """The machine in use, for things that make no sense without one: a stream, an event."""
    if _active is None:
        raise RuntimeError(say(en="no simulated machine is in use any more", zh="已经没有模拟机器在使用"))
    return _active


def seeing(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call ``function`` with the machine in sight of this thread, if one is in use.

    What C++ calls back (hooks, unpacked tensors) comes with the function modes off, or on a thread of the engine.
    """
    if _active is None:
        return function(*args, **kwargs)
    with _active.entered():
        return function(*args, **kwargs)


def below_modes(function: Callable[..., Any]) -> Callable[..., Any]:
    """Run ``function`` as C++ would: none of its own tensor operations pass the function modes."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        with torch._C.DisableTorchFunction():
            return function(*args, **kwargs)

    return run


def use(machine: TheMachine | None) -> None:
    """From now on :func:`machine_in_use` is ``machine``. Only :mod:`.machine` says so."""
    global _active
    _active = machine
