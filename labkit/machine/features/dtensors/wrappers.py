"""``DTensor`` on simulated GPUs: the wrapper and its local tensor are on the rank's GPU.

C++ runs the operators of local tensors and wraps what comes out (torch/csrc/autograd/python_variable.cpp,
dispatchDTensorOp), so a local result has no mark when ``DTensor.__new__`` gets it: it is where the call is at work,
or, in backward, on the thread's current GPU, which is the rank's.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from ....base.patches import Patch
from ... import hooks
from ...state.gpu import TheMachine
from ...state.in_use import machine_in_use, seeing, work
from ...state.placement import gpu_of, is_kept, keep_on_host, put, put_wrapper
from . import attention, draws


class _Answers(dict[Any, Any]):
    """Operator -> the function that C++ calls for it, which sees the machine."""

    def __init__(self, answers: dict[Any, Any]) -> None:
        super().__init__(
            {operator: functools.partial(seeing, answer) for operator, answer in answers.items()}
        )

    def update(self, answers: Any) -> None:  # type: ignore[override]  # the one form in which torch calls it
        super().update(_Answers(answers))


def _answers(dispatcher: Any) -> _Answers:
    """The operators that Python answers; loss_parallel brings more (torch/distributed/tensor/parallel/loss.py)."""
    found = vars(dispatcher)["_custom_op_handlers"]
    if found.__class__ is not _Answers:
        _answer_by(dispatcher, _Answers(found))
        return _answers(dispatcher)
    return found


def _answer_by(dispatcher: Any, answers: dict[Any, Any]) -> None:
    vars(dispatcher)["_custom_op_handlers"] = answers


@hooks.patches.add
def patches(machine: TheMachine) -> Iterator[Patch]:
    """The functions that make DTensors, and those of their Python that C++ calls."""
    make = getattr(Tensor, "_dtensor__new__", None)
    if make is None:
        return  # a build without torch.distributed
    yield Patch(Tensor, "_dtensor__new__", staticmethod(_making(make)))
    loaded: Any = sys.modules.get("torch.distributed.tensor")
    if loaded is not None:
        yield Patch(loaded.DTensor, "__new__", staticmethod(_making(loaded.DTensor.__new__)))
        yield from _rows(loaded.DTensor)


@hooks.class_made.add
def class_made(kind: Any) -> None:
    """If the new class ``kind`` is DTensor, which a script imports while the machine is in use, it gets its rows.

    It has taken our ``_dtensor__new__``; all of this does nothing without a machine.
    """
    if (kind.__module__, kind.__name__) == ("torch.distributed.tensor._api", "DTensor"):
        for owner, name, value in _rows(kind):
            setattr(owner, name, value)


def _rows(kind: Any) -> Iterator[Patch]:
    dispatcher: Any = type(kind._op_dispatcher)
    change = functools.partial(seeing, dispatcher.redistribute_local_args)
    yield Patch(dispatcher, "redistribute_local_args", staticmethod(change))
    tail: Any = getattr(dispatcher, "_dispatch_fast_path_python_tail", None)
    if tail is not None:  # brings together the answers of operators that return numbers (torch.equal)

        def answered(*args: Any) -> Any:
            return seeing(tail, *args)

        yield Patch(dispatcher, tail.__name__, answered)
    yield Patch(dispatcher, "_custom_op_handlers", property(_answers, _answer_by))
    yield from draws.rows()
    yield from attention.rows(kind._op_dispatcher)
    schemas: Any = sys.modules["torch.distributed.tensor._op_schema"]
    yield Patch(schemas, "_rebuild_tensor_from_dtensor_meta", _shape_of)


def _shape_of(spec: Any) -> Tensor:
    """Makes the tensor that stands for a DTensor where operators are asked for shapes: fake, and on the host.

    For a fake tensor on a GPU some decompositions ask C++ for a guard of CUDA, which the CPU build has not.
    """
    meta = spec.tensor_meta
    assert meta is not None
    device = spec.mesh.device_type if machine_in_use() is None else "cpu"
    return torch.empty_strided(meta.shape, meta.stride, dtype=meta.dtype, device=device)


def _making(make: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(make)
    def new(cls: type, local_tensor: Tensor, spec: Any, **options: Any) -> Any:
        made = make(cls, local_tensor, spec, **options)
        machine = machine_in_use()
        meta = local_tensor.device.type == "meta"
        if machine is not None and machine.gpus and spec.mesh.device_type == "cuda" and not meta:
            # Offloaded shards are kept on the host, and so are the results of their operators.
            offloaded = is_kept(local_tensor) or (work.whole and work.gpu is None and not work.engine)
            gpu = gpu_of(local_tensor) or (None if offloaded else work.gpu or machine.gpu(None))
            if gpu is not None:
                put(local_tensor, gpu)
                put_wrapper(made, gpu)
            else:
                keep_on_host(local_tensor)
        return made

    return new
