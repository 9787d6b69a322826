"""Notes where an operation is at work, for Python that C++ calls in the middle of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch._C import _len_torch_dispatch_stack
from torch.overrides import TorchFunctionMode

from ....base.patches import Patch
from ....base.tree import tensors_in
from ...stack import hands_on, leave
from ...state.gpu import TheMachine
from ...state.placement import gpu_of, keep_on_host
from ...state.work import at_work, work


class NoteHome(TorchFunctionMode):
    """Notes where each operation is at work, for Python below it that must know."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if types and types[0] is not Tensor and hands_on():
            return NotImplemented
        kwargs = kwargs or {}
        with (
            torch._C.DisableTorchFunction()
        ):  # the user's modes, which may be below this one, are not to see it
            gpus = list(map(gpu_of, tensors_in(args, kwargs)))
        gpu = next((gpu for gpu in gpus if gpu is not None), None)
        with at_work(gpu, whole=all(at is gpu for at in gpus)):
            return func(*args, **kwargs)


def on_machine(machine: TheMachine, run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call ``run``, Python to which C++ came in the middle of an operation; its results stay where it puts them."""
    home = work.gpu
    # There may be another dispatch mode below the one that is called.
    noting = NoteHome() if _len_torch_dispatch_stack() else nullcontext()
    with at_work(None), machine.entered(), noting:
        result = run(*args, **kwargs)
    if home is not None:  # or the machine's mode would place it there
        for tensor in tensors_in(result):
            keep_on_host(tensor)
    return result


def noting(kind: Any, concerns: Callable[[Any], bool] = lambda _: True) -> Iterator[Patch]:
    """Within each context manager of the class ``kind`` that ``concerns`` says, operations are noted.

    One object can be entered several times, and can outlast the machine: its modes are kept on it.
    """
    enter_real, leave_real = kind.__enter__, kind.__exit__

    def enter_noting(self: Any) -> Any:
        if concerns(self):
            self.__dict__.setdefault("_labkit_modes", []).append(NoteHome())
            self._labkit_modes[-1].__enter__()
        return enter_real(self)

    def leave_noting(self: Any, *exc_info: Any) -> Any:
        result = leave_real(self, *exc_info)
        modes = self.__dict__.get("_labkit_modes")
        # It can be anywhere on the stack. If it is not there, as within backward, the next end takes it off.
        if modes and leave(modes[-1]):
            modes.pop()
        return result

    yield Patch(kind, "__enter__", enter_noting)
    yield Patch(kind, "__exit__", leave_noting)
