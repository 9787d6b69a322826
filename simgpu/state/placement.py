"""The simulated GPU that a tensor is on: reading it, and putting tensors there.

A storage lives on one GPU: views, detached tensors, saved tensors and parameters agree because they share
their storage. Tensors without a storage of their own (sparse ones, functorch's wrappers) are looked
through to those that have one.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from labkit.base.tree import tensors_in

from .gpu import Gpu
from .marks import HOST, KEPT, MARK, PINNED

_storage: Any = Tensor.untyped_storage
_real_type = Tensor.type
# aten/src/ATen/LegacyBatchedTensorImpl.h, kVmapNumLevels
_MOST_LEVELS = 64


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
    if torch._C._functorch.is_legacy_batchedtensor(tensor):
        return parts(_remove_batch(tensor))
    if tensor.is_nested:
        return [tensor.values()] if layout is torch.jagged else [tensor]
    return [tensor]


def _remove_batch(tensor: Tensor) -> Tensor:
    """The view without a batch in ``tensor``, one of the wrappers with which autograd batches gradients."""
    level = 1
    inner = tensor
    # The outermost batch is taken out of it. A tensor without a batch of this level only gets another wrapper.
    while torch._C._functorch.is_legacy_batchedtensor(inner) and level <= _MOST_LEVELS:
        inner = torch._remove_batch_dim(tensor, level, 1, 0)
        level += 1
    return inner


def gpu_of(tensor: Tensor) -> Gpu | None:
    """The simulated GPU that ``tensor`` is on; None for the host."""
    gpu: Gpu | None = None
    try:
        gpu = _storage(tensor)._labkit_mark.gpu
    except (NotImplementedError, RuntimeError, ValueError):
        for storage in _storages(tensor)[:1]:
            gpu = storage._labkit_mark.gpu
    return gpu


def _storages(tensor: Tensor) -> list[Any]:
    """The storages of ``tensor``: its own, or those of its parts.

    A parameter that a lazy module has yet to make has one, but refuses to be asked (ValueError, from its
    ``__torch_function__``); sparse and wrapped tensors have none (``c10/core/TensorImpl.cpp``,
    ``throw_storage_access_error``), their parts do.
    """
    try:
        return [_storage(tensor)]
    except (NotImplementedError, RuntimeError, ValueError):
        found = []
    with torch._C.DisableTorchFunctionSubclass():
        for part in parts(tensor):
            with suppress(NotImplementedError, RuntimeError):
                found.append(_storage(part))
    return found


def put(tensor: Any, gpu: Gpu | None) -> Any:
    """Mark the storage of ``tensor`` as living on ``gpu``, unless it lives on a GPU already; returns ``tensor``."""
    if gpu is not None:
        for storage in _storages(tensor):
            if storage._labkit_mark is HOST and storage.device.type != "meta":
                gpu.put(storage)
    return tensor


def put_wrapper(tensor: Tensor, gpu: Gpu) -> None:
    """Mark ``tensor``, which only stands for others and has no memory of its own, as living on ``gpu``."""
    with torch._C.DisableTorchFunctionSubclass():
        setattr(_storage(tensor), MARK, gpu.marks.get(0) or gpu.new_mark(0))


def note_leaf(tensor: Tensor) -> None:
    """If ``tensor`` is on a GPU and gets a gradient, let the GPU know: its gradient will be there too.

    A tensor without a storage is left out: functorch's wrappers are gone when a gradient could be seen.
    """
    if tensor.requires_grad:
        try:
            gpu = _storage(tensor)._labkit_mark.gpu
        except (NotImplementedError, RuntimeError, ValueError):
            return
        if gpu is not None:
            gpu.leaves.note(tensor)


def keep_on_host(tensor: Tensor) -> None:
    """Whatever call it comes out of, ``tensor`` is on the host if it is there now."""
    for storage in _storages(tensor):
        if storage._labkit_mark is HOST:
            setattr(storage, MARK, KEPT)


def pin(tensor: Tensor) -> None:
    """Remember that ``tensor`` is in pinned memory of the host."""
    keep_on_host(tensor)
    for part in parts(tensor):
        setattr(part.untyped_storage(), PINNED, True)


def is_kept(tensor: Tensor) -> bool:
    """Whether ``tensor`` is known to be the host's."""
    try:
        return _storage(tensor)._labkit_mark is KEPT
    except (NotImplementedError, RuntimeError, ValueError):
        return False


def put_all(result: Any, gpu: Gpu | None) -> Any:
    """Put every tensor in ``result`` (a tensor, or a structure of them) on ``gpu``; returns ``result``."""
    for tensor in () if gpu is None else tensors_in(result):
        put(tensor, gpu)
    return result


def put_again(storage: torch.UntypedStorage) -> None:
    """Count ``storage`` anew after its size changed."""
    gpu = getattr(storage, MARK).gpu
    if gpu is not None:
        gpu.put(storage)


def put_anew(tensor: Tensor, gpu: Gpu | None) -> None:
    """Count the storages of ``tensor`` anew, which an operation may have resized, or replaced by others on ``gpu``."""
    for storage in _storages(tensor):
        put_again(storage)
    put(tensor, gpu)


def place(tensor: Tensor) -> str:
    """The device of ``tensor`` as messages write it: ``"cuda:1"``, ``"cpu"``."""
    gpu = gpu_of(tensor)
    return str(tensor.device) if gpu is None else name_of(gpu)


def name_of(gpu: Gpu | None) -> str:
    """``"cuda:1"``; ``"cpu"`` for None, the host."""
    return "cpu" if gpu is None else str(gpu.device)


def type_name(tensor: Tensor) -> str:
    """``"torch.FloatTensor"``, or ``"torch.cuda.FloatTensor"`` on a simulated GPU."""
    name = _real_type(tensor)
    return name if gpu_of(tensor) is None else name.replace("torch.", "torch.cuda.", 1)


def type_in_errors(tensor: Tensor) -> str:
    """The name that C++ has for it: the same, but ``"CUDABFloat16Type"``, since bfloat16 came after the old names."""
    if tensor.dtype is torch.bfloat16:
        return "CPUBFloat16Type" if gpu_of(tensor) is None else "CUDABFloat16Type"
    return type_name(tensor)
