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
    return all(part.untyped_storage()._labkit_pinned for part in parts(args[0]))
