"""Find the simulated GPU of a tensor, and put tensors on GPUs.

A storage is on one GPU: views, detached tensors, saved tensors and parameters agree because they share their storage.
For tensors without a storage (sparse ones, functorch's wrappers), their parts count.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from labkit.base.tree import tensors_in

from .gpu import Gpu
from .marks import HOST, KEPT, MARK, PINNED, real_device

_storage: Any = Tensor.untyped_storage
_real_type = Tensor.type
# aten/src/ATen/LegacyBatchedTensorImpl.h, kVmapNumLevels
_MOST_LEVELS = 64


def parts(tensor: Tensor) -> list[Tensor]:
    """Return the tensors whose storages hold the values of ``tensor``: itself, unless it is sparse or wrapped."""
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
    """Return the unbatched tensor inside ``tensor``, a wrapper by which autograd batches gradients."""
    level = 1
    inner = tensor
    # Remove the batch of each level in turn. A tensor without a batch of this level only gets another wrapper.
    while torch._C._functorch.is_legacy_batchedtensor(inner) and level <= _MOST_LEVELS:
        inner = torch._remove_batch_dim(tensor, level, 1, 0)
        level += 1
    return inner


def gpu_of(tensor: Tensor) -> Gpu | None:
    """Return the simulated GPU of ``tensor``; None for the host."""
    gpu: Gpu | None = None
    try:
        gpu = _storage(tensor)._labkit_mark.gpu
    except (NotImplementedError, RuntimeError, ValueError):
        for storage in _storages(tensor)[:1]:
            gpu = storage._labkit_mark.gpu
    return gpu


def gpus_of(values: Iterable[Any], otherwise: Any = None) -> list[Any]:
    """Return the GPU of each tensor in ``values``, and ``otherwise`` for other things."""
    with torch._C.DisableTorchFunction():  # the mode would see each look at a storage
        return [gpu_of(value) if isinstance(value, Tensor) else otherwise for value in values]


def _storages(tensor: Tensor) -> list[Any]:
    """Return the storages of ``tensor`` or of its parts.

    An uninitialized parameter of a lazy module has one but raises ValueError from its ``__torch_function__``. Sparse
    and wrapped tensors have none (``c10/core/TensorImpl.cpp``, ``throw_storage_access_error``), their parts do.
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
    """Mark the storage of ``tensor`` as on ``gpu``, unless it is on a GPU already; return ``tensor``."""
    if gpu is not None:
        for storage in _storages(tensor):
            if storage._labkit_mark is HOST and real_device(storage).type != "meta":
                gpu.put(storage)
    return tensor


def put_wrapper(tensor: Tensor, gpu: Gpu) -> None:
    """Mark ``tensor``, a wrapper without memory, as on ``gpu``."""
    with torch._C.DisableTorchFunctionSubclass():
        setattr(_storage(tensor), MARK, gpu.marks.get(0) or gpu.new_mark(0))


def note_leaf(tensor: Tensor) -> None:
    """If ``tensor`` is on a GPU and gets a gradient, let the GPU expect the gradient.

    Skip tensors without a storage: functorch's wrappers are gone before anybody sees their gradient.
    """
    if tensor.requires_grad:
        try:
            gpu = _storage(tensor)._labkit_mark.gpu
        except (NotImplementedError, RuntimeError, ValueError):
            return
        if gpu is not None:
            gpu.leaves.note(tensor)


def keep_on_host(tensor: Tensor) -> None:
    """Keep ``tensor`` on the host, if it is there now, whichever call returns it."""
    for storage in _storages(tensor):
        if storage._labkit_mark is HOST:
            setattr(storage, MARK, KEPT)


def pin(tensor: Tensor) -> None:
    """Remember that ``tensor`` is in pinned memory of the host."""
    keep_on_host(tensor)
    for part in parts(tensor):
        setattr(part.untyped_storage(), PINNED, True)


def is_kept(tensor: Tensor) -> bool:
    """Whether ``tensor`` stays on the host."""
    try:
        return _storage(tensor)._labkit_mark is KEPT
    except (NotImplementedError, RuntimeError, ValueError):
        return False


def put_all(result: Any, gpu: Gpu | None) -> Any:
    """Put every tensor in ``result`` (a tensor, or a structure of them) on ``gpu``; return ``result``."""
    for tensor in () if gpu is None else tensors_in(result):
        put(tensor, gpu)
    return result


def put_again(storage: torch.UntypedStorage) -> None:
    """Recount ``storage`` after a change of its size."""
    gpu = getattr(storage, MARK).gpu
    if gpu is not None:
        gpu.put(storage)


def put_anew(tensor: Tensor, gpu: Gpu | None) -> None:
    """Recount the storages of ``tensor``, which an operation may have resized, or replaced by others on ``gpu``."""
    for storage in _storages(tensor):
        put_again(storage)
    put(tensor, gpu)


def place(tensor: Tensor) -> str:
    """Return the device of ``tensor`` as in error messages: ``"cuda:1"``, ``"cpu"``."""
    gpu = gpu_of(tensor)
    return str(tensor.device) if gpu is None else name_of(gpu)


def name_of(gpu: Gpu | None) -> str:
    """Return ``"cuda:1"``, or ``"cpu"`` for None, the host."""
    return "cpu" if gpu is None else str(gpu.device)


def type_name(tensor: Tensor) -> str:
    """Return ``"torch.FloatTensor"``, or ``"torch.cuda.FloatTensor"`` on a simulated GPU."""
    name = _real_type(tensor)
    return name if gpu_of(tensor) is None else name.replace("torch.", "torch.cuda.", 1)


def type_in_errors(tensor: Tensor) -> str:
    """Return the name in C++'s errors: the same, but ``"CUDABFloat16Type"``, as bfloat16 came after the old names."""
    if tensor.dtype is torch.bfloat16:
        return "CPUBFloat16Type" if gpu_of(tensor) is None else "CUDABFloat16Type"
    return type_name(tensor)
