"""Show collectives to dispatch modes as operators of ``torch.ops.c10d``.

PyTorch's own groups are C++, and Python calls them through the dispatcher (torch/csrc/distributed/c10d/Ops.cpp). It
calls simulated groups directly. So this module shows the operator to the modes of the thread (CommDebugMode, or a
user's own), from the topmost on, and then to tensors that wrap others. The collective takes place when the last of them
calls the operator.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.distributed import ProcessGroup, ReduceOp
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack, _pop_mode_temporarily
from torch.utils._python_dispatch import is_traceable_wrapper_subclass as is_wrapper

from labkit.base.language import say
from labkit.base.ours import is_our_module
from labkit.base.tree import tensors_in
from simgpu.dispatch import others_dispatch

from ..calls.call import CollectiveCall

# The operator of each kind of call, and the one for several tensors at once.
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
# Types of arguments that hold tensors of the call.
_TENSORS = ("Tensor", "List[Tensor]", "List[List[Tensor]]")


class _RedirectedOperator(OpOverload):
    """An operator that equals ``operator`` and runs ``run`` when called.

    Modes read the schema and packet of an OpOverload, compare it, look it up in tables and call it. The real operator
    would call a group in C++, so modes get this copy.
    """

    def __init__(self, operator: Any, run: Callable[..., Any]) -> None:
        self.__dict__.update(vars(operator), _op=run, stands_for=operator)

    def __eq__(self, other: object) -> bool:
        return other is self or other is self.__dict__["stands_for"]

    def __hash__(self) -> int:
        return hash(self.__dict__["stands_for"])


def needs_dispatch(call: CollectiveCall) -> bool:
    """Whether a dispatch mode, or a tensor that wraps others, must see ``call``."""
    return others_dispatch() or _find_wrapper((*call.inputs, *call.outputs)) is not None


def _find_wrapper(tensors: Iterable[Any]) -> Any:
    """Return the first of ``tensors`` that wraps other tensors; else None."""
    for tensor in tensors:
        # Pending results of functional collectives are waited for instead.
        if type(tensor) is not Tensor and not hasattr(tensor, "trigger_wait") and is_wrapper(tensor):
            return tensor
    return None


def dispatch_call(group: ProcessGroup, call: CollectiveCall, go_on: Callable[[CollectiveCall], Any]) -> Any:
    """Show ``call`` as an operator to modes and wrappers, and return the result, a Work.
     ``go_on`` gets the call with the arguments that they pass on. A wrapper passes the tensors that it holds, and may
    call the operator several times.
    """
    names = _OPERATORS[call.kind]
    several = len(call.outputs) > 1 and len(names) > 1
    operator: Any = getattr(torch.ops.c10d, names[-1] if several else names[0]).default
    arguments = operator._schema.arguments

    def run(*args: Any, **kwargs: Any) -> Any:
        mode: Any = next(reversed(_get_current_dispatch_mode_stack()), None)
        if mode is not None and not mode.is_infra_mode():  # torch's compilation modes expect a C++ group
            with _pop_mode_temporarily():
                if is_our_module(type(mode).__module__):
                    return run(*args, **kwargs)
                return mode.__torch_dispatch__(redirected, (), args, kwargs)
        brought = copy.copy(call)
        brought.inputs, brought.outputs = _tensors_of_call(args, arguments, call)
        brought.memo, brought.event_facts = {}, {}
        wrapper = _find_wrapper((*brought.inputs, *brought.outputs))
        if wrapper is not None:
            return _ask_wrapper(wrapper, redirected, args, kwargs)
        work = go_on(brought)
        return work if len(operator._schema.returns) == 1 else (args[0], work)

    redirected = _RedirectedOperator(operator, run)
    result = run(*(_argument_value(argument, call, group) for argument in arguments))
    return result[-1] if isinstance(result, tuple) else result


def _ask_wrapper(wrapper: Any, redirected: _RedirectedOperator, args: Any, kwargs: Any) -> Any:
    """Let ``wrapper`` handle the operator.

    Raises NotImplementedError, as DTensor's own dispatch does, if it has no answer.
    """
    kind = type(wrapper)
    if not kind.__module__.startswith("torch.distributed."):
        result = kind.__torch_dispatch__(redirected, (kind,), args, kwargs)
        if result is not NotImplemented:
            return result
    en = f" (a {kind.__name__} holds other tensors: hand over those, as .to_local() gives them)"
    zh = f"（{kind.__name__} 里装着别的张量：请传那些张量，例如 .to_local() 的结果）"
    theirs = f"Operator {redirected} does not have a sharding strategy registered."
    raise NotImplementedError(theirs + say(en=en, zh=zh))


def _tensors_of_call(args: Any, arguments: Any, call: CollectiveCall) -> tuple[list[Any], list[Any]]:
    """Return the inputs and outputs of ``call`` among the operator's ``args``."""
    inputs, outputs = [], []
    for value, argument in zip(args, arguments, strict=False):
        if str(argument.type) in _TENSORS:
            tensors = tensors_in(value)
            if argument.name.startswith("input"):
                inputs = tensors
            elif not argument.name.startswith("tensor"):
                outputs = tensors
            else:  # an argument for both inputs and outputs
                inputs, outputs = tensors if call.inputs else [], list(tensors) if call.outputs else []
    return inputs, outputs


def _argument_value(argument: Any, call: CollectiveCall, group: ProcessGroup) -> Any:
    """Return the value of the operator's ``argument``."""
    name, kind = argument.name, str(argument.type)
    if kind in _TENSORS:
        brought = call.inputs if name.startswith("input") or not call.outputs else call.outputs
        if kind.startswith("List[List"):
            return [list(brought)] if brought else []
        if kind.startswith("List"):
            return list(brought)
        return next(iter(brought), torch.empty(0))
    to, came = call.splits or (None, None)
    known = {
        "process_group": group,
        "root_tensor": 0,
        "tag": call.tag,
        "async_op": call.async_op,
        "device_ids": [],
        "input_split_sizes": to or [],
        "output_split_sizes": came or [],
    }
    if name == "reduce_op":
        return getattr(ReduceOp, call.op)
    return call.root if name in ("root_rank", "dst", "src") else known.get(name, argument.default_value)
