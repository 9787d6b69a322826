"""Storages on simulated GPUs: their device, and how they are made there.

Copies between devices, ``torch.save`` and ``torch.load`` need no more than this: PyTorch's own code asks a storage for
its device, makes another on the wanted one and copies (torch/storage.py, ``cpu``; torch/_utils.py, ``_to``).
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch

from ...base.patches import Patch
from ..rules.together import check_new_storage
from ..stack import on_stack
from ..state.gpu import TheMachine
from ..state.in_use import machine_in_use
from ..state.marks import HOST, MARK, PINNED
from ..state.placement import gpu_of, put, put_again
from .failures import refusals

_real_device = torch._C.StorageBase.device.__get__


def patches(machine: TheMachine) -> Iterator[Patch]:
    """``torch.UntypedStorage`` knows about simulated GPUs. Every storage without a mark of its own is the host's."""
    kind = torch.UntypedStorage
    real_new, real_resize = kind.__new__, kind.resize_

    def new(cls: type, *args: Any, device: Any = None, **options: Any) -> torch.UntypedStorage:
        seen, gpu = machine_in_use(), None
        if device is not None:
            gpu = None if seen is None else seen.resolve(device)
            options["device"] = device if gpu is None else gpu.machine.backing
        if gpu is None:
            return real_new(cls, *args, **options)
        if args and isinstance(args[0], int):
            gpu.make_room(args[0], written=False)
        with refusals(gpu):
            storage: torch.UntypedStorage = real_new(cls, *args, **options)
        gpu.put(storage)
        return storage

    def resize(storage: torch.UntypedStorage, size: int) -> torch.UntypedStorage:
        gpu = getattr(storage, MARK).gpu
        if gpu is not None and size > storage.nbytes():
            gpu.make_room(size, written=False)
        with refusals(gpu):
            result = real_resize(storage, size)
        put_again(storage)
        return result

    yield Patch(kind, MARK, HOST)
    yield Patch(kind, PINNED, False)
    yield Patch(kind, "__new__", new)
    yield Patch(kind, "resize_", resize)
    yield Patch(kind, "device", property(_device))

    real_set, mode = torch.Tensor.set_, machine.mode

    # set_ passes no function mode (tools/autograd/templates/python_variable_methods.cpp, THPVariable_set_). Within
    # another function's call the mode is off, and torch's own work (a deepcopy's) goes on as it is.
    @functools.wraps(real_set)
    def set_(tensor: torch.Tensor, source: Any = None, *args: Any, **kwargs: Any) -> torch.Tensor:
        if source is None:
            gpu = gpu_of(tensor)
            emptied = real_set(tensor, *args, **kwargs)
            if gpu is not None:
                put(emptied, gpu)
            return emptied
        if on_stack(mode):
            check_new_storage(tensor, source)
        return real_set(tensor, source, *args, **kwargs)

    yield Patch(torch.Tensor, "set_", set_)


def _device(storage: torch.UntypedStorage) -> torch.device:
    gpu = getattr(storage, MARK).gpu
    return _real_device(storage) if gpu is None else gpu.device
