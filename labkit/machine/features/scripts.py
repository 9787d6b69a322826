"""Scripted and traced code (TorchScript) and functionalized code on simulated GPUs.

Its operations run below torch's Python API: only what comes out of a call can be placed, on the GPU of the
tensors that went in (or of the module's parameters). Devices that mix inside are not noticed.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from ...base.tree import tensors_in
from ..state.gpu import TheMachine
from ..state.in_use import replaces
from ..state.placement import gpu_of, put_all


@replaces(torch.jit, "load")
def _load(machine: TheMachine, real: Any, f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
    gpu = None if map_location is None else machine.resolve(map_location)
    if gpu is None:
        return real(f, map_location, *args, **kwargs)
    return real(f, "cpu", *args, **kwargs).to(gpu.device)


@replaces(torch.func, "functionalize")
def _functionalize(machine: TheMachine, real: Any, func: Any, **options: Any) -> Any:
    return functools.wraps(func)(functools.partial(_call, machine, real(func, **options)))


@replaces(torch._C.ScriptFunction, "__call__")
@replaces(torch._C.ScriptMethod, "__call__")
def _call(_: TheMachine, real: Any, *args: Any, **kwargs: Any) -> Any:
    result = real(*args, **kwargs)
    gpus = (gpu_of(tensor) for tensor in tensors_in(args, kwargs))
    return put_all(result, next((gpu for gpu in gpus if gpu is not None), None))
