"""Run code under ``torch.compile`` uncompiled, with a warning: a compiler does not see simulated GPUs.

The values equal those of compiled code up to rounding. The wrapper is PyTorch's own, with ``_orig_mod…`` in the names
of weights in checkpoints. Errors that only a compiler finds (a graph break under ``fullgraph=True``) are missed.

Scripted, traced and functionalized code runs below torch's Python API. Only its results can be placed, on the GPU of
the inputs (or of the module's parameters). Mixed devices inside are not noticed.
"""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Callable
from typing import Any
from weakref import WeakSet

import torch

from labkit.base.texts import texts_beside
from labkit.base.tree import tensors_in

from ..state.current_machine import replaces
from ..state.gpu import TheMachine
from ..state.placement import gpu_of, put_all

_TEXTS = texts_beside(__file__)
# The machines on which the warning was given.
_warned: WeakSet[TheMachine] = WeakSet()


@replaces(torch, "compile")
def _compile(
    machine: TheMachine, real: Callable[..., Any], model: Any = None, *, mode: Any = None, options: Any = None,
    disable: bool = False, **asked: Any,
) -> Any:  # fmt: skip
    if os.environ.get("TORCHDYNAMO_DISABLE") == "1":
        # torch.compile returns its argument then.
        return real(model, mode=mode, options=options, disable=disable, **asked)
    if machine not in _warned and os.environ.get("RANK", "0") == "0":
        _warned.add(machine)
        warnings.warn(_TEXTS["as-it-is"](), stacklevel=4)
    if model is None:
        return lambda model: torch.compile(model, mode=mode, options=options, disable=disable, **asked)
    if mode is not None and options is not None:
        raise RuntimeError(
            "Either mode or options can be specified, but both can't be specified at the same time."
        )
    if disable:
        return model
    from torch import _dynamo

    return _dynamo.run(model)  # runs only code compiled before: none


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
