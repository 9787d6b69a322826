"""Put the machine's modes on a thread's mode stacks, and take them off."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
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

# Whether a function mode must pass a call with subclasses on to their __torch_function__ (see ops/mode.py). False
# within DisableTorchFunctionSubclass.
hands_on = _is_torch_function_enabled
_asks_nobody = torch.Tensor.__torch_dispatch__
# Returns this thread's FakeTensorMode; None where that is off.
fake_mode = partial(torch._C._get_dispatch_mode, torch._C._TorchDispatchModeKey.FAKE)


class ModeEntered:
    """Context manager to put a mode on this thread's stack, unless already there.

    The mode goes below the others, because ``with torch.device(...)`` will take off the topmost. Only the default
    device stays below, where torch looks for it.
    """

    __slots__ = ("_mode", "_pushed")

    def __init__(self, mode: TorchFunctionMode) -> None:
        self._mode = mode
        self._pushed = False

    def __enter__(self) -> None:
        mode = self._mode
        depth = _len_torch_function_stack()
        if not depth:  # the usual case: every handler, hook and backward
            _push_on_torch_function_stack(mode)
            self._pushed = True
            return
        if on_stack(mode):
            return
        default = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
        above = []
        while depth and _get_function_stack_at(depth - 1) is not default:
            above.append(_pop_torch_function_stack())
            depth -= 1
        _push_on_torch_function_stack(mode)
        while above:
            _push_on_torch_function_stack(above.pop())
        self._pushed = True

    def __exit__(self, *exc_info: object) -> None:
        if self._pushed:
            take_off_stack(self._mode)
            self._pushed = False


class OperatorMode(TorchDispatchMode):
    """Base of the machine's dispatch modes: :meth:`operator` gets each ATen operator.

    Enter and exit skip torch's bookkeeping for compilers. Its exit calls deeper than its enter, so near Python's
    recursion limit it would fail and leave the mode on the stack.
    """

    def __enter__(self) -> Any:
        _push_on_torch_dispatch_stack(self)
        return self

    def __exit__(self, *exc_info: object) -> None:
        _pop_torch_dispatch_stack(None)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if fake_mode() is not None:  # FakeTensorMode is next and answers
            return func(*args, **(kwargs or {}))
        # Tensor subclasses with a __torch_dispatch__ are asked next, with this mode on, so that it sees the operators
        # on their inner tensors (python_arg_parser.cpp, handle_torch_function_no_python_arg_parser).
        answers_itself = any(kind.__torch_dispatch__ is not _asks_nobody for kind in types)
        return NotImplemented if answers_itself else self.operator(func, args, kwargs or {})

    def operator(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Answer the operator ``func``, with the mode off."""
        raise NotImplementedError


def others_dispatch() -> bool:
    """Whether this thread has dispatch modes besides the machine's."""
    return _len_torch_dispatch_stack() > 0 and not all(
        isinstance(mode, OperatorMode) for mode in _get_current_dispatch_mode_stack()
    )


def on_stack(mode: TorchFunctionMode) -> bool:
    """Whether ``mode`` is on this thread's stack."""
    return any(_get_function_stack_at(at) is mode for at in range(_len_torch_function_stack()))


def take_off_stack(mode: TorchFunctionMode) -> bool:
    """Take ``mode`` off this thread's stack at any depth; return False if ``mode`` was missing."""
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
    """Let entering a context manager of class ``kind`` also push ``mode(manager)``, unless that is None.

    The pushed modes are kept on the object: it can be entered several times, and outlast the machine.
    """
    enter_real, leave_real = kind.__enter__, kind.__exit__

    def enter(self: Any) -> Any:
        pushed = mode(self)
        entered = enter_real(self)  # may raise, before anything is pushed
        if pushed is not None:
            self.__dict__.setdefault("_labkit_modes", []).append(pushed)
            _push_on_torch_function_stack(pushed)
        return entered

    def exit_(self: Any, *exc_info: Any) -> Any:
        try:
            return leave_real(self, *exc_info)
        finally:
            modes = self.__dict__.get("_labkit_modes")
            # The mode can be anywhere on the stack. If it is missing, as within backward, a later exit removes it.
            if modes and take_off_stack(modes[-1]):
                modes.pop()

    yield Patch(kind, "__enter__", enter)
    yield Patch(kind, "__exit__", exit_)


@contextmanager
def without_modes() -> Iterator[None]:
    """Empty this thread's stack of function modes for a ``with`` block."""
    modes = [_pop_torch_function_stack() for _ in range(_len_torch_function_stack())]
    try:
        yield
    finally:
        while modes:
            _push_on_torch_function_stack(modes.pop())
