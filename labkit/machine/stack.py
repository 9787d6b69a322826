"""Puts the machine's mode on a thread's stack of function modes, and takes it off."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch._C import (
    _get_function_stack_at,
    _is_torch_function_enabled,
    _len_torch_function_stack,
    _pop_torch_function_stack,
    _push_on_torch_function_stack,
)
from torch.overrides import TorchFunctionMode

# Whether a function mode that is given types of subclasses hands the call on to these (see ops/mode.py): not within
# DisableTorchFunctionSubclass, which a subclass's own code puts around what is to be a tensor's.
hands_on = _is_torch_function_enabled


class Entered:
    """Puts a mode on this thread's stack, unless it is there.

    It goes below the others: what is already there (``with torch.device(...)``) will take off the topmost.
    Only the default device must stay below it, where torch looks for it.
    """

    __slots__ = ("_mode", "_pushed")

    def __init__(self, mode: TorchFunctionMode) -> None:
        self._mode = mode
        self._pushed = False

    def __enter__(self) -> None:
        mode = self._mode
        there = _len_torch_function_stack()
        if not there:  # as in every handler, hook and backward
            _push_on_torch_function_stack(mode)
            self._pushed = True
            return
        if on_stack(mode):
            return
        default = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
        above = []
        while (
            _len_torch_function_stack()
            and _get_function_stack_at(_len_torch_function_stack() - 1) is not default
        ):
            above.append(_pop_torch_function_stack())
        _push_on_torch_function_stack(mode)
        while above:
            _push_on_torch_function_stack(above.pop())
        self._pushed = True

    def __exit__(self, *exc_info: object) -> None:
        if self._pushed:
            leave(self._mode)
            self._pushed = False


def on_stack(mode: TorchFunctionMode) -> bool:
    """Whether ``mode`` is on this thread's stack."""
    return any(_get_function_stack_at(at) is mode for at in range(_len_torch_function_stack()))


def leave(mode: TorchFunctionMode) -> bool:
    """Take ``mode`` off this thread's stack, at any depth. Returns whether it was there."""
    above: list[TorchFunctionMode] = []
    found = False
    while _len_torch_function_stack() and not found:
        top = _pop_torch_function_stack()
        found = top is mode
        if not found:
            above.append(top)
    while above:
        _push_on_torch_function_stack(above.pop())
    return found


@contextmanager
def without_modes() -> Iterator[None]:
    """Inside, this thread's stack of function modes is empty."""
    modes = [_pop_torch_function_stack() for _ in range(_len_torch_function_stack())]
    try:
        yield
    finally:
        while modes:
            _push_on_torch_function_stack(modes.pop())
