"""Storages on simulated GPUs: their device, copies between devices, saving and loading.

``torch.save`` and ``torch.load`` need no more than this: PyTorch's own code asks a storage for its device
and moves it with ``.cpu()`` and ``.to(device=...)``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from ...base.patches import Patch
from ..in_use import machine_here, machine_in_use
from ..state.gpu import HOST, MARK
from ..state.placement import put_again

if TYPE_CHECKING:
    from ..machine import Machine

_real_device = torch._C.StorageBase.device.__get__


def patches(machine: Machine) -> Iterator[Patch]:
    """``torch.UntypedStorage`` knows about simulated GPUs. Every storage without a mark of its own is the host's."""
    kind = torch.UntypedStorage
    real_new, real_resize = kind.__new__, kind.resize_

    def new(cls: type, *args: Any, device: Any = None, **options: Any) -> torch.UntypedStorage:
        seen = machine_in_use()
        gpu = seen.resolve(device) if seen is not None and device is not None else None
        if gpu is None:
            return real_new(cls, *args, **options, **({} if device is None else {"device": device}))
        storage: torch.UntypedStorage = real_new(cls, *args, **options)
        gpu.put(storage)
        return storage

    def resize(storage: torch.UntypedStorage, size: int) -> torch.UntypedStorage:
        result = real_resize(storage, size)
        put_again(storage)
        return result

    yield Patch(kind, MARK, HOST)
    yield Patch(kind, "_labkit_pinned", False)
    yield Patch(kind, "__new__", new)
    yield Patch(kind, "resize_", resize)
    yield Patch(kind, "device", property(_device))
    yield Patch(kind, "to", _to)
    yield Patch(kind, "cuda", _cuda)
    yield Patch(kind, "cpu", _cpu)


def _device(storage: torch.UntypedStorage) -> torch.device:
    gpu = getattr(storage, MARK).gpu
    return _real_device(storage) if gpu is None else gpu.device


def _to(storage: torch.UntypedStorage, *, device: Any, non_blocking: bool = False) -> torch.UntypedStorage:
    machine = machine_here()
    gpu, at = machine.resolve(device), getattr(storage, MARK).gpu
    if gpu is at and (gpu is not None or torch.device(device) == _real_device(storage)):
        return storage
    copy = torch.UntypedStorage(storage.nbytes(), device=machine.real(gpu))
    copy.copy_(storage)
    if gpu is not None:
        gpu.put(copy)
    return copy


def _cuda(
    storage: torch.UntypedStorage, device: Any = None, non_blocking: bool = False
) -> torch.UntypedStorage:
    return _to(storage, device="cuda" if device is None else device)


def _cpu(storage: torch.UntypedStorage) -> torch.UntypedStorage:
    return storage if getattr(storage, MARK) is HOST else _to(storage, device="cpu")
