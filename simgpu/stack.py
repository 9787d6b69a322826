"""Puts the machine's modes on a thread's stacks of modes, and takes them off."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._C import (
    _get_function_stack_at,
    _is_torch_function_enabled,
    _len_torch_dispatch_stack,
    _len_torch_function_stack,
    _pop_torch_dispatch_stack,
    _pop_torch_function_stack,
    _push_on_torch_dispatch_stack,
    _push_on_torch_function_stack,
)
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from labkit.base.patches import Patch

# Whether a function mode that is given types of subclasses hands the call on to these (see ops/mode.py): not within
# DisableTorchFunctionSubclass, which a subclass's own code puts around what is to be a tensor's.
hands_on = _is_torch_function_enabled
_asks_nobody = torch.Tensor.__torch_dispatch__
_FAKE, _current = torch._C._TorchDispatchModeKey.FAKE, torch._C._get_dispatch_mode


class ModeEntered:
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
        while there and _get_function_stack_at(there - 1) is not default:
            above.append(_pop_torch_function_stack())
            there -= 1
        _push_on_torch_function_stack(mode)
        while above:
            _push_on_torch_function_stack(above.pop())
        self._pushed = True

    def __exit__(self, *exc_info: object) -> None:
        if self._pushed:
            take_off_stack(self._mode)
            self._pushed = False


class OperatorMode(TorchDispatchMode):
    """A dispatch mode of the machine's own, which sees each ATen operator in :meth:`operator`.

    It comes and goes without torch's notes for compilers: an exit that calls deeper than its enter fails where the
    stack of Python ends between the two, and the mode stays.
    """

    def __enter__(self) -> Any:
        _push_on_torch_dispatch_stack(self)
        return self

    def __exit__(self, *exc_info: object) -> None:
        _pop_torch_dispatch_stack(None)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # A mode for fake tensors comes after this one, and answers for its own: they leave it to that.
        if _current(_FAKE) is not None:
            return func(*args, **(kwargs or {}))
        # A class of tensors that answers operators itself (what they are made of, their sizes) is asked next, with
        # this mode on: it sees what is done to the tensors inside (torch/csrc/utils/python_arg_parser.cpp,
        # handle_torch_function_no_python_arg_parser).
        asked = any(kind.__torch_dispatch__ is not _asks_nobody for kind in types)
        return NotImplemented if asked else self.operator(func, args, kwargs or {})

    def operator(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Answer the operator ``func``, with the mode off."""
        raise NotImplementedError


def others_dispatch() -> bool:
    """Whether this thread has a dispatch mode that is not the machine's own."""
    return _len_torch_dispatch_stack() > 0 and not all(
        isinstance(mode, OperatorMode) for mode in _get_current_dispatch_mode_stack()
    )


def on_stack(mode: TorchFunctionMode) -> bool:
    """Whether ``mode`` is on this thread's stack."""
    return any(_get_function_stack_at(at) is mode for at in range(_len_torch_function_stack()))


def take_off_stack(mode: TorchFunctionMode) -> bool:
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


def with_mode(kind: Any, mode: Callable[[Any], TorchFunctionMode | None]) -> Iterator[Patch]:
    """Each context manager of the class ``kind`` brings ``mode(manager)`` with it; None: nothing.

    One object can be entered several times, and can outlast the machine: its modes are kept on it.
    """
    enter_real, leave_real = kind.__enter__, kind.__exit__

    def enter(self: Any) -> Any:
        brought = mode(self)
        entered = enter_real(self)  # if it fails, nothing was brought
        if brought is not None:
            self.__dict__.setdefault("_labkit_modes", []).append(brought)
            _push_on_torch_function_stack(brought)
        return entered

    def exit_(self: Any, *exc_info: Any) -> Any:
        try:
            return leave_real(self, *exc_info)
        finally:
            modes = self.__dict__.get("_labkit_modes")
            # It can be anywhere on the stack. If it is not there, as within backward, the next end takes it off.
            if modes and take_off_stack(modes[-1]):
                modes.pop()

    yield Patch(kind, "__enter__", enter)
    yield Patch(kind, "__exit__", exit_)


@contextmanager
def without_modes() -> Iterator[None]:
    """Inside, this thread's stack of function modes is empty."""
    modes = [_pop_torch_function_stack() for _ in range(_len_torch_function_stack())]
    try:
        yield
    finally:
        while modes:
            _push_on_torch_function_stack(modes.pop())
