"""``saved_tensors_hooks`` (and what is built on them, such as checkpointing) on simulated GPUs.

The hooks are called from C++ in the middle of an operation (torch/csrc/autograd/saved_variable.cpp,
set_hooks_and_pack_data): what an operation saves of its own result carries no mark yet, for the machine's mode marks
it when the call has come back. While hooks are in use, a second function mode notes on which GPU each operation runs
(:class:`.below.NoteHome`), so that what is packed is there. Unpacking comes from the engine, during backward and maybe
on another thread.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from ...base.patches import Patch
from ..ops.below import NoteHome
from ..stack import leave as take_off
from ..state.in_use import seeing
from ..state.placement import put
from ..state.work import work

if TYPE_CHECKING:
    from ..machine import Machine

Hook = Callable[[Any], Any]


def patches(machine: Machine) -> Iterator[Patch]:
    """The hooks see devices."""
    enter, leave = saved_tensors_hooks.__enter__, saved_tensors_hooks.__exit__
    put_in: Any = torch._C._autograd._push_saved_tensors_default_hooks

    def push(pack_hook: Hook, unpack_hook: Hook) -> None:
        @functools.wraps(pack_hook, updated=())
        def pack(tensor: Tensor) -> Any:
            if work.gpu is not None and isinstance(tensor, Tensor):
                put(tensor, work.gpu)
            return seeing(pack_hook, tensor)

        @functools.wraps(unpack_hook, updated=())
        def unpack(packed: Any) -> Any:
            return seeing(unpack_hook, packed)

        put_in(pack, unpack)

    # One object can be entered several times, and entered hooks can outlast the machine: the modes are kept on it.
    def enter_noting(self: Any) -> Any:
        self.__dict__.setdefault("_labkit_modes", []).append(NoteHome())
        self._labkit_modes[-1].__enter__()
        return enter(self)

    def leave_noting(self: Any, *exc_info: Any) -> Any:
        result = leave(self, *exc_info)
        modes = self.__dict__.get("_labkit_modes")
        # Wherever on the stack it is; if it is not, as within backward, it waits for the next end.
        if modes and take_off(modes[-1]):
            modes.pop()
        return result

    yield Patch(torch._C._autograd, "_push_saved_tensors_default_hooks", push)
    yield Patch(saved_tensors_hooks, "__enter__", enter_noting)
    yield Patch(saved_tensors_hooks, "__exit__", leave_noting)
