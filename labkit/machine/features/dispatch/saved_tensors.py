"""``saved_tensors_hooks`` (and what is built on them, such as checkpointing) on simulated GPUs.

The hooks are called from C++ in the middle of an operation (torch/csrc/autograd/saved_variable.cpp,
set_hooks_and_pack_data): what an operation saves of its own result carries no mark yet, for the machine's mode marks
it when the call has come back. While hooks are in use, a second function mode notes on which GPU each operation runs
(:class:`.noting.NoteHome`), so that what is packed is there. Unpacking comes from the engine, during backward and maybe
on another thread.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from ....base.patches import Patch
from ... import hooks
from ...state.gpu import TheMachine
from ...state.in_use import seeing
from ...state.placement import put
from ...state.work import work
from .noting import noting

Hook = Callable[[Any], Any]


@hooks.patches.add
def patches(machine: TheMachine) -> Iterator[Patch]:
    """The hooks see the devices of the tensors that are packed and unpacked."""
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

    yield Patch(torch._C._autograd, "_push_saved_tensors_default_hooks", push)
    yield from noting(saved_tensors_hooks)
