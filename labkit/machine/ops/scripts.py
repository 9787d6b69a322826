"""Scripted and traced code (TorchScript) on simulated GPUs.

Its operations run below torch's Python API: only what comes out of a call can be placed, on the GPU of the
tensors that went in (or of the module's parameters). Devices that mix inside are not noticed.
"""

from __future__ import annotations

import functools

import torch

from ..state.placement import gpu_of, put_all, tensors_in


def install(patches, machine_in_use) -> None:
    """Place what scripted functions and methods return, and scripts that are loaded onto a GPU."""
    load = torch.jit.load

    @functools.wraps(load)
    def load_there(f, map_location=None, *args, **kwargs):
        gpu = None if map_location is None else machine_in_use().resolve(map_location)
        if gpu is None:
            return load(f, map_location, *args, **kwargs)
        return load(f, "cpu", *args, **kwargs).to(gpu.device)

    patches.set(torch.jit, "load", load_there)
    for kind in (torch._C.ScriptFunction, torch._C.ScriptMethod):
        patches.set(kind, "__call__", _placing(kind.__call__))


def _placing(call):
    def placed(script, *args, **kwargs):
        result = call(script, *args, **kwargs)
        gpus = (gpu_of(tensor) for tensor in tensors_in(args, kwargs))
        home = next((gpu for gpu in gpus if gpu is not None), None)
        if home is not None:
            put_all(result, home)
        return result

    return placed
