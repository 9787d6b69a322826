"""Pinned memory: remembered by the storage, for there is no GPU whose copies it could speed up."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.utils._device import _device_constructors

from ..handlers import Handler, functions_in_row, handles, wraps_handlers
from ..ops.mode import MachineMode
from ..rules.functions import check_function, check_new_pinned
from ..state.placement import gpu_of, parts, pin


@wraps_handlers(*_device_constructors(), *functions_in_row("made pinned"))
def _make_pinned(go_on: Handler, mode: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A call that makes a tensor. The computer has no pinned memory: the tensor only remembers that it is pinned."""
    if not kwargs.get("pin_memory"):
        return go_on(mode, func, args, kwargs)
    made = go_on(mode, func, args, {**kwargs, "pin_memory": False})
    check_new_pinned(gpu_of(made))
    pin(made)
    return made


# Memory that was pinned where it is, by ``cudaHostRegister``: address -> bytes.
_registered: dict[int, int] = {}


def register(address: int, nbytes: int, _flags: int = 0) -> int:
    """``cudaHostRegister``: 0, or CUDA's code for memory that is registered already (712)."""
    if address in _registered:
        return 712
    _registered[address] = nbytes
    return 0


def unregister(address: int) -> int:
    """``cudaHostUnregister``: 0, or CUDA's code for memory that is not registered (713)."""
    return 713 if _registered.pop(address, None) is None else 0


@handles(Tensor.pin_memory)
def _pin_memory(mode: MachineMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    check_function(func, args, kwargs)
    tensor: Tensor = args[0]
    if not _is_pinned(mode, func, args, kwargs):
        tensor = tensor.clone()
        pin(tensor)
    return tensor


@handles(Tensor.is_pinned)
def _is_pinned(mode: MachineMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    storages = [part.untyped_storage() for part in parts(args[0])]
    return all(
        storage._labkit_pinned
        or any(start <= storage.data_ptr() < start + nbytes for start, nbytes in _registered.items())
        for storage in storages
    )
