"""Give storages a device, and make them on simulated GPUs.

Copies between devices, ``torch.save`` and ``torch.load`` need no more: PyTorch's own code reads a storage's device,
makes a storage on the wanted one and copies (torch/storage.py, ``cpu``; torch/_utils.py, ``_to``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from labkit.base.patches import Patch

from .. import hooks
from ..rules.same_device import check_new_storage
from ..stack import on_stack
from ..state.current_machine import at_work, replaces
from ..state.gpu import TheMachine
from ..state.marks import HOST, MARK, PINNED, real_device
from ..state.placement import gpu_of, put, put_again


@hooks.patches.add
def patches(_: TheMachine) -> Iterator[Patch]:
    """Let ``torch.UntypedStorage`` know simulated GPUs. A storage without a mark of its own is on the host."""
    yield Patch(torch.UntypedStorage, MARK, HOST)
    yield Patch(torch.UntypedStorage, PINNED, False)
    yield Patch(torch.UntypedStorage, "device", property(_device))


@replaces(torch.UntypedStorage, "__new__")
def _new(machine: TheMachine, real: Any, cls: type, *args: Any, device: Any = None, **options: Any) -> Any:
    gpu = None if device is None else machine.resolve(device)
    if gpu is None:
        return real(cls, *args, **options if device is None else options | {"device": device})
    if args and isinstance(args[0], int):
        gpu.make_room(args[0], written=False)
    with at_work(gpu):
        storage = real(cls, *args, **options, device="cpu")
    gpu.put(storage)
    return storage


@replaces(torch.storage._StorageBase, "cpu")
def _cpu(machine: TheMachine, real: Any, storage: Any) -> Any:
    if storage.device.type == "cuda":  # as torch.save does
        for waited in hooks.host_waited:
            waited(machine)
    return real(storage)


@replaces(torch.UntypedStorage, "resize_")
def _resize(_: TheMachine, real: Any, storage: torch.UntypedStorage, size: int) -> Any:
    gpu = getattr(storage, MARK).gpu
    if gpu is not None and size > storage.nbytes():
        gpu.make_room(size, written=False)
    with at_work(gpu):
        result = real(storage, size)
    put_again(storage)
    return result


# set_ passes no function mode (tools/autograd/templates/python_variable_methods.cpp, THPVariable_set_). Check only
# while the machine's mode is on: torch's own code (a deepcopy) runs inside another call, with the mode off.
@replaces(torch.Tensor, "set_")
def _set(machine: TheMachine, real: Any, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    source, gpu = args[0] if args else kwargs.get("source"), gpu_of(tensor)
    if source is not None and on_stack(machine.mode):
        check_new_storage(tensor, source)
    return put(real(tensor, *args, **kwargs), gpu if source is None else None)


def _device(storage: torch.UntypedStorage) -> torch.device:
    gpu = getattr(storage, MARK).gpu
    return real_device(storage) if gpu is None else gpu.device
