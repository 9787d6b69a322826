"""Pinned memory: a flag of the storage, as no copy gets faster here."""

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
    """Make a tensor in ordinary memory, with the flag of pinned memory."""
    if not kwargs.get("pin_memory"):
        return go_on(mode, func, args, kwargs)
    made = go_on(mode, func, args, {**kwargs, "pin_memory": False})
    check_new_pinned(gpu_of(made))
    pin(made)
    return made


# Memory pinned by ``cudaHostRegister``: address -> bytes.
_registered: dict[int, int] = {}


def register(address: int, nbytes: int, _flags: int = 0) -> int:
    """Pin memory as ``cudaHostRegister``: return 0, or 712 for memory that is registered already."""
    if address in _registered:
        return 712
    _registered[address] = nbytes
    return 0


def unregister(address: int) -> int:
    """Unpin memory as ``cudaHostUnregister``: return 0, or 713 for memory that is not registered."""
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
