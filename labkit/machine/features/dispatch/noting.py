"""Notes where an operation is at work, for Python that C++ calls in the middle of it.

Such are the hooks of ``saved_tensors_hooks``, on which checkpointing is built (torch/csrc/autograd/saved_variable.cpp,
set_hooks_and_pack_data). What an operation saves of its own result carries no mark yet, for the machine's mode marks it
when the call has come back. Unpacking comes from the engine, during backward and maybe on another thread.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode

from ....base.tree import tensors_in
from ... import hooks
from ...stack import hands_on, others_dispatch, with_mode
from ...state.gpu import TheMachine
from ...state.in_use import at_work, replaces, seeing, work
from ...state.placement import gpu_of, keep_on_host, put


class NoteHome(TorchFunctionMode):
    """Notes where each operation is at work, for Python below it that must know."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if types and types[0] is not Tensor and hands_on():
            return NotImplemented
        kwargs = kwargs or {}
        # The user's modes, which may be below this one, are not to see it.
        with torch._C.DisableTorchFunction():
            tensors = tensors_in(args, kwargs)
            gpus = list(map(gpu_of, tensors))
            gpu = next((gpu for gpu in gpus if gpu is not None), None)
            for tensor, at in zip(tensors, gpus, strict=True):
                if at is not gpu and at is None:  # or saved, it would be taken for a result of the call
                    keep_on_host(tensor)
        with at_work(gpu, whole=all(at is gpu for at in gpus)):
            return func(*args, **kwargs)


def on_machine(machine: TheMachine, run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call ``run``, Python to which C++ came in the middle of an operation; its results stay where it puts them."""
    home = work.gpu
    # There may be another dispatch mode below the one that is called.
    noting = NoteHome() if others_dispatch() else nullcontext()
    with at_work(None), machine.entered(), noting:
        result = run(*args, **kwargs)
    if home is not None:  # or the machine's mode would place it there
        for tensor in tensors_in(result):
            keep_on_host(tensor)
    return result


@replaces(torch._C._autograd, "_push_saved_tensors_default_hooks")
def _push(
    _: TheMachine, real: Any, pack_hook: Callable[[Any], Any], unpack_hook: Callable[[Any], Any]
) -> None:
    """The hooks see the devices of the tensors that are packed and unpacked."""

    @functools.wraps(pack_hook, updated=())
    def pack(tensor: Tensor) -> Any:
        if work.gpu is not None and isinstance(tensor, Tensor):
            put(tensor, work.gpu)
        return seeing(pack_hook, tensor)

    @functools.wraps(unpack_hook, updated=())
    def unpack(packed: Any) -> Any:
        return seeing(unpack_hook, packed)

    real(pack, unpack)


hooks.patches.add(lambda _: with_mode(saved_tensors_hooks, lambda _: NoteHome()))
