"""Scripted and traced code (TorchScript) on simulated GPUs.

Its operations run below torch's Python API: only what comes out of a call can be placed, on the GPU of the
tensors that went in (or of the module's parameters). Devices that mix inside are not noticed.
"""

from __future__ import annotations

import torch

from .placement import gpu_of, put_all, tensors_in


def install(patches) -> None:
    """Place what scripted functions and methods return."""
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
