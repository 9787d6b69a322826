"""Scripted and traced code (TorchScript) and functionalized code on simulated GPUs.

Its operations run below torch's Python API: only what comes out of a call can be placed, on the GPU of the
tensors that went in (or of the module's parameters). Devices that mix inside are not noticed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ...base.patches import Patch
from ...base.tree import tensors_in
from .. import hooks
from ..state.gpu import TheMachine
from ..state.in_use import machine_in_use
from ..state.placement import gpu_of, put_all


@hooks.patches.add
def patches(machine: TheMachine) -> Iterator[Patch]:
    """Place what scripted functions and methods return, and scripts that are loaded onto a GPU."""
    load = torch.jit.load

    @functools.wraps(load)
    def load_there(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        seen = machine_in_use()  # none, for who imported this name while there was one
        gpu = None if seen is None or map_location is None else seen.resolve(map_location)
        if gpu is None:
            return load(f, map_location, *args, **kwargs)
        return load(f, "cpu", *args, **kwargs).to(gpu.device)

    yield Patch(torch.jit, "load", load_there)
    functionalize = torch.func.functionalize

    @functools.wraps(functionalize)
    def functionalize_there(func: Any, **options: Any) -> Any:
        return functools.wraps(func)(_placing(functionalize(func, **options)))

    yield Patch(torch.func, "functionalize", functionalize_there)
    for kind in (torch._C.ScriptFunction, torch._C.ScriptMethod):
        yield Patch(kind, "__call__", _placing(kind.__call__))


def _placing(call: Callable[..., Any]) -> Callable[..., Any]:
    def placed(*args: Any, **kwargs: Any) -> Any:
        result = call(*args, **kwargs)
        gpus = (gpu_of(tensor) for tensor in tensors_in(args, kwargs))
        home = next((gpu for gpu in gpus if gpu is not None), None)
        if home is not None:
            put_all(result, home)
        return result

    return placed
