"""Pinned memory: remembered by the storage, for there is no GPU whose copies it could speed up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from ..handlers import handles
from ..rules.functions import check_function, check_new_pinned
from ..state.gpu import Gpu
from ..state.placement import keep_on_host, parts

if TYPE_CHECKING:
    from ..ops.mode import MachineMode


def without_pinning(kwargs: dict[str, Any], gpu: Gpu | None) -> dict[str, Any]:
    """The keywords of a call that makes a tensor on ``gpu``, for a computer without pinned memory.

    What was asked for is the caller's to :func:`remember`.
    """
    check_new_pinned(gpu)
    return {**kwargs, "pin_memory": False}


def remember(tensor: Tensor) -> None:
    """``tensor`` is in pinned memory from now on."""
    keep_on_host(tensor)
    for part in parts(tensor):
        part.untyped_storage()._labkit_pinned = True


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


def _in_registered(tensor: Tensor) -> bool:
    at = tensor.untyped_storage().data_ptr()
    return any(start <= at < start + nbytes for start, nbytes in _registered.items())


@handles(Tensor.pin_memory)
def _pin_memory(mode: MachineMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    check_function(func, args, kwargs)
    tensor: Tensor = args[0]
    if not _is_pinned(mode, func, args, kwargs):
        tensor = tensor.clone()
        remember(tensor)
    return tensor


@handles(Tensor.is_pinned)
def _is_pinned(mode: MachineMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return all(
        part.untyped_storage()._labkit_pinned or (_registered and _in_registered(part))
        for part in parts(args[0])
    )
