"""Tensors of other layouts take what they are made of to one device.

A sparse tensor takes its values to ``device=``, and its indices to the values (torch/csrc/utils/tensor_new.cpp,
sparse_coo_tensor_ctor and its kin). A nested tensor in its strided layout takes the tensors to the first one's device.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...base.tree import tensors_in
from ..handlers import Handler, around, named
from ..ops.moves import default_gpu, move
from ..state.gpu import TheMachine
from ..state.in_use import replaces
from ..state.placement import gpu_of, put


@around(*named("sparse_coo_tensor sparse_compressed_tensor sparse_csr_tensor sparse_csc_tensor sparse_bsr_tensor "
               "sparse_bsc_tensor"))  # fmt: skip
def _construct(go_on: Handler, mode: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    at = 1 if func is torch.sparse_coo_tensor else 2
    values = args[at] if len(args) > at else kwargs.get("values")
    if kwargs.get("device") is not None:
        target = mode.machine.resolve(kwargs["device"])
    elif isinstance(values, Tensor):
        target = gpu_of(values)
    else:
        target = default_gpu(mode.machine)

    def brought(value: Any) -> Any:
        if not isinstance(value, Tensor) or gpu_of(value) is target:
            return value
        return move(mode.machine, value, target)

    kwargs = {name: brought(value) for name, value in kwargs.items()}
    if target is not None:
        kwargs["device"] = target.device
    return go_on(mode, func, tuple(map(brought, args)), kwargs)


@replaces(torch._C._nested, "nested_tensor")
def _nested(machine: TheMachine, real: Any, values: Any, *, device: Any = None, **options: Any) -> Any:
    tensors = tensors_in(values)
    target = machine.resolve(device) if device is not None else gpu_of(tensors[0]) if tensors else None
    if device is not None:
        device = machine.real(target, device)
    return put(real(values, device=device, **options), target)
