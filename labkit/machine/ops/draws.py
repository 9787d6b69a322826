"""Functions that draw random numbers: each draws from the generator of the GPU that it is at work on."""

from __future__ import annotations

import inspect
from typing import Any

import torch

from ...base.tree import tensors_in
from ..handlers import handles, listed
from ..rules.together import check_generator
from ..state.gpu import Gpu
from ..state.placement import gpu_of
from .mode import MachineMode

# Functions that take a generator (at::Generator? in native_functions.yaml): they are given the GPU's own.
_SETTABLE = frozenset(listed("with a generator"))
# Functions that draw from the default generator and take none, or hand none on to what draws inside them.
_OTHERS = [
    *listed("from the default generator"),
    *(
        function
        for name, function in inspect.getmembers(torch.nn.init, inspect.isfunction)
        if name.endswith("_") and not name.startswith("_")
    ),
]


def with_generator(mode: MachineMode, func: Any, gpu: Gpu | None, kwargs: dict[str, Any]) -> dict[str, Any]:
    """The keywords for a call of ``func`` on ``gpu``: with the generator of ``gpu``, unless one is given."""
    given = kwargs.get("generator")
    if given is not None:
        check_generator(given, gpu)
    elif gpu is not None and func in _SETTABLE:
        return {**kwargs, "generator": mode.machine.random.generators[gpu.index]}
    return kwargs


# The functions among them that make a tensor get another handler: .moves, imported later, registers it.
@handles(*_SETTABLE, *_OTHERS)
def _draw(mode: MachineMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    device, tensors = kwargs.get("device"), tensors_in(args, kwargs)
    gpu = mode.machine.resolve(device) if device is not None else gpu_of(tensors[0]) if tensors else None
    kwargs = with_generator(mode, func, gpu, kwargs)
    if gpu is None or func in _SETTABLE:
        return mode.general(func, args, kwargs)
    with mode.machine.random.instead_of_default(gpu):
        return mode.general(func, args, kwargs)
