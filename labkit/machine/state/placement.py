"""Which simulated GPU a tensor is on, and putting it there.

A storage lives on one GPU: views, detached tensors, saved tensors and parameters agree because they share
their storage. Tensors without a storage of their own (sparse ones, functorch's wrappers) are looked
through to those that have one.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .gpu import HOST, MARK, Gpu

_storage = Tensor.untyped_storage
_real_type = Tensor.type


def parts(tensor: Tensor) -> list[Tensor]:
    """The tensors whose storages hold the values of ``tensor``: itself, unless it is sparse or wrapped."""
    layout = tensor.layout
    if layout is torch.sparse_coo:
        return [tensor._values(), tensor._indices()]
    if layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.values(), tensor.crow_indices(), tensor.col_indices()]
    if layout in (torch.sparse_csc, torch.sparse_bsc):
        return [tensor.values(), tensor.ccol_indices(), tensor.row_indices()]
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return parts(torch._C._functorch.get_unwrapped(tensor))
    if tensor.is_nested:
        return [tensor.values()] if layout is torch.jagged else [tensor]
    return [tensor]


def gpu_of(tensor: Tensor) -> Gpu | None:
    """The simulated GPU that ``tensor`` is on; None for the host."""
    try:
        return getattr(_storage(tensor), MARK).gpu
    except (NotImplementedError, RuntimeError):
        pass
    except ValueError:
        return getattr(_storage_of_lazy(tensor), MARK).gpu
    for part in parts(tensor):
        try:
            return getattr(_storage(part), MARK).gpu
        except (NotImplementedError, RuntimeError):
            continue
    return None


def _storage_of_lazy(tensor: Tensor) -> torch.UntypedStorage:
    """The storage of a parameter that a lazy module has yet to make; such parameters refuse to be asked."""
    with torch._C.DisableTorchFunctionSubclass():
        return _storage(tensor)


def put(tensor: Tensor, gpu: Gpu) -> None:
    """Mark the storage of ``tensor`` as living on ``gpu``, unless it lives on a GPU already."""
    try:
        storage = _storage(tensor)
    except (NotImplementedError, RuntimeError):
        for part in parts(tensor):
            if part is not tensor:
                put(part, gpu)
        return
    except ValueError:
        storage = _storage_of_lazy(tensor)
    if getattr(storage, MARK) is HOST and storage.device.type != "meta":
        gpu.put(storage)


def put_all(result: object, gpu: Gpu) -> None:
    """Put every tensor in ``result`` (tensors, tuples, lists, dicts of them) on ``gpu``."""
    if isinstance(result, Tensor):
        put(result, gpu)
    elif isinstance(result, (tuple, list)):
        for item in result:
            put_all(item, gpu)
    elif isinstance(result, dict):
        for item in result.values():
            put_all(item, gpu)


def put_again(storage: torch.UntypedStorage) -> None:
    """Count ``storage`` anew after its size changed."""
    gpu = getattr(storage, MARK).gpu
    if gpu is not None:
        gpu.put(storage)


def tensors_in(*values: object) -> list[Tensor]:
    """Every tensor in ``values``, looking into tuples, lists and dicts."""
    found: list[Tensor] = []
    _collect(values, found)
    return found


def _collect(values, found: list[Tensor]) -> None:
    for value in values:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, (tuple, list)):
            _collect(value, found)
        elif isinstance(value, dict):
            _collect(value.values(), found)


def type_name(tensor: Tensor) -> str:
    """``"torch.FloatTensor"``, or ``"torch.cuda.FloatTensor"`` on a simulated GPU."""
    name = _real_type(tensor)
    return name if gpu_of(tensor) is None else name.replace("torch.", "torch.cuda.", 1)
