"""``torch.tensor(storage)``: the storage itself, if that is where the tensor is to be, the host by default.

torch/csrc/utils/tensor_new.cpp, internal_new_from_data.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import TypedStorage, UntypedStorage

from ..handlers import Handler, around
from ..ops.moves import default_gpu, move
from ..state.placement import type_name


@around(torch.tensor, torch.as_tensor, torch.asarray)
def _made_of(go_on: Handler, mode: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if not args or not isinstance(args[0], (TypedStorage, UntypedStorage)):
        return go_on(mode, func, args, kwargs)
    storage, device, dtype = args[0], kwargs.get("device"), kwargs.get("dtype")
    if isinstance(storage, TypedStorage):
        if dtype not in (None, storage.dtype):
            wanted, got = (type_name(torch.empty(0, dtype=kind))[6:-6] for kind in (dtype, storage.dtype))
            raise RuntimeError(f"Expected a Storage of type {wanted} or an UntypedStorage, but got {got}")
        dtype, storage = storage.dtype, storage._untyped_storage
    tensor = torch.tensor(storage, dtype=dtype)
    target = default_gpu(mode.machine) if device is None else mode.machine.resolve(device)
    return move(mode.machine, tensor, target).requires_grad_(kwargs.get("requires_grad", False))
