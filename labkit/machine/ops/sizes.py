"""A call that will make too much for its GPU is refused before the computer is asked for the memory."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor

from ..handlers import handles, listed
from ..state.gpu import Gpu
from ..state.host import WORTH
from ..state.placement import gpu_of, put
from .mode import MachineMode

# These copy data that are already in memory, so the result is no larger.
_OF_DATA = frozenset(listed("of data"))
# These never write to the memory that they take.
_UNWRITTEN = frozenset(listed("unwritten"))


def make_room(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], gpu: Gpu) -> None:
    """Raise if what ``func`` will make on ``gpu`` is too much for it, or for the computer."""
    if func in _OF_DATA or kwargs.get("out") is not None:
        return
    # The result has at most as many elements as the product of all numbers, each of at most 16 bytes.
    most = math.prod(_numbers((*args, *kwargs.values())))
    if 16 * most < WORTH:
        return
    chosen = {"device": "meta", "pin_memory": False} if "pin_memory" in kwargs else {"device": "meta"}
    asked = {name: value for name, value in kwargs.items() if name not in ("generator", "requires_grad")}
    try:
        made = func(*args, **{**asked, **chosen})
        size = made.untyped_storage().nbytes()
    except (RuntimeError, TypeError, ValueError):
        return  # the call itself says what is wrong with it
    gpu.make_room(size, written=func not in _UNWRITTEN)


def _numbers(values: Iterable[Any]) -> Iterator[float]:
    for value in values:
        kind = value.__class__
        if kind is int or kind is float:
            yield max(1, abs(value))
        elif isinstance(value, Tensor):
            yield max(1, value.numel())
        elif isinstance(value, (tuple, list)):
            yield from _numbers(value)


@handles(*listed("beside a tensor"))
def _beside(mode: MachineMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensor = args[0] if args else kwargs["input"]
    if len(args) == 1 and not kwargs and tensor.__class__ is Tensor and tensor.numel() < WORTH / 16:
        gpu = gpu_of(tensor)  # as most calls are: no larger than what is there
        mode.own(gpu)
        return put(func(tensor), gpu)
    device = kwargs.get("device")
    gpu = gpu_of(tensor) if device is None else mode.machine.resolve(device)
    if gpu is not None:
        make_room(func, args, kwargs, gpu)
    return mode.general(func, args, kwargs)
