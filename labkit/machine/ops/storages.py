"""Storages on simulated GPUs: their device, copies between devices, saving and loading.

``torch.save`` and ``torch.load`` need no more than this: PyTorch's own code asks a storage for its device
and moves it with ``.cpu()`` and ``.to(device=...)``.
"""

from __future__ import annotations

import torch

from ..in_use import machine_in_use
from ..state.gpu import HOST, MARK
from ..state.placement import put_again

_real_device = torch._C.StorageBase.device.__get__


def install(patches) -> None:
    """Let ``torch.UntypedStorage`` know about simulated GPUs."""

    def device(storage):
        gpu = getattr(storage, MARK).gpu
        return _real_device(storage) if gpu is None else gpu.device

    def to(storage, *, device, non_blocking=False):
        machine = machine_in_use()
        gpu = machine.resolve(device)
        if gpu is getattr(storage, MARK).gpu and (
            gpu is not None or torch.device(device) == _real_device(storage)
        ):
            return storage
        copy = torch.UntypedStorage(storage.nbytes(), device=machine.real(gpu))
        copy.copy_(storage)
        if gpu is not None:
            gpu.put(copy)
        return copy

    real_new = torch.UntypedStorage.__new__

    def new(cls, *args, device=None, **options):
        machine = machine_in_use()
        gpu = machine.resolve(device) if machine is not None and device is not None else None
        if gpu is None:
            return real_new(cls, *args, **options, **({} if device is None else {"device": device}))
        storage = real_new(cls, *args, **options)
        gpu.put(storage)
        return storage

    def cuda(storage, device=None, non_blocking=False):
        return to(storage, device="cuda" if device is None else device)

    def cpu(storage):
        return storage if getattr(storage, MARK) is HOST else to(storage, device="cpu")

    real_resize = torch.UntypedStorage.resize_

    def resize(storage, size):
        result = real_resize(storage, size)
        put_again(storage)
        return result

    patches.set(torch.UntypedStorage, "resize_", resize)
    patches.set(torch.UntypedStorage, "__new__", new)
    patches.set(torch.UntypedStorage, "device", property(device))
    patches.set(torch.UntypedStorage, "to", to)
    patches.set(torch.UntypedStorage, "cuda", cuda)
    patches.set(torch.UntypedStorage, "cpu", cpu)
