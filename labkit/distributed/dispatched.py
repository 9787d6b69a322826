"""Dispatch modes see collectives (CommDebugMode counts them), though these do not pass C++'s dispatcher."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack, _pop_mode_temporarily

from .call import Call

# What C++ calls them (torch/csrc/distributed/c10d/Ops.cpp), and where one call has several tensors.
_OPERATORS = {
    "all_reduce": ("allreduce_", "allreduce_coalesced_"),
    "broadcast": ("broadcast_",),
    "reduce": ("reduce_",),
    "all_gather": ("allgather_",),
    "all_gather_single": ("_allgather_base_", "allgather_into_tensor_coalesced_"),
    "gather": ("gather_",),
    "scatter": ("scatter_",),
    "reduce_scatter": ("reduce_scatter_",),
    "reduce_scatter_single": ("_reduce_scatter_base_", "reduce_scatter_tensor_coalesced_"),
    "all_to_all": ("alltoall_",),
    "all_to_all_single": ("alltoall_base_",),
    "barrier": ("barrier",),
    "send": ("send",),
    "recv": ("recv_",),
}


class _Operator:
    """Stands for an operator of ``torch.ops.c10d``: called, it goes on to the next mode, and last to the group."""

    def __init__(self, operator: Any, come: Callable[[], Any]) -> None:
        self._operator, self._come = operator, come
        self.work: Any = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch._C._len_torch_dispatch_stack():
            with _pop_mode_temporarily() as mode:
                return mode.__torch_dispatch__(self, (), args, kwargs)
        self.work = self._come()
        return args[0], self.work

    def __getattr__(self, name: str) -> Any:
        return getattr(self._operator, name)

    def __eq__(self, other: object) -> bool:
        return other is self or other == self._operator

    def __hash__(self) -> int:
        return hash(self._operator)

    def __repr__(self) -> str:
        return repr(self._operator)


def dispatched(call: Call, come: Callable[[], Any]) -> Any:
    """What ``come()`` returns, the Work of ``call``, which the modes of this thread are told of.

    Those of torch's own compilation are not: they would have what C++ has.
    """
    if any(mode.is_infra_mode() for mode in _get_current_dispatch_mode_stack()):
        return come()
    names = _OPERATORS[call.kind]
    operator = _Operator(getattr(torch.ops.c10d, names[-1 if len(call.outputs) > 1 else 0]).default, come)
    operator(call.outputs or call.inputs, call.inputs)
    return come() if operator.work is None else operator.work
