"""``torch.compile``: a compiler does not see simulated GPUs, so code runs as it is, and this is said.

The values are those of the compiled code but for rounding, and the wrapper is PyTorch's own: its weights are called
``_orig_mod…`` in checkpoints. What only a compiler finds (a break of the graph under ``fullgraph=True``) is not found.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from typing import Any
from weakref import WeakSet

import torch

from ...base.language import say
from ..state.gpu import TheMachine
from ..state.in_use import replaces

# The machines on which it was said.
_told: WeakSet[TheMachine] = WeakSet()


@replaces(torch, "compile")
def _compile(
    machine: TheMachine, real: Callable[..., Any], model: Any = None, *, mode: Any = None, options: Any = None,
    disable: bool = False, **asked: Any,
) -> Any:  # fmt: skip
    if os.environ.get("TORCHDYNAMO_DISABLE") == "1":
        return real(
            model, mode=mode, options=options, disable=disable, **asked
        )  # it gives back what it was given
    if machine not in _told and os.environ.get("RANK", "0") == "0":
        _told.add(machine)
        warnings.warn(
            say(
                en="torch.compile: on simulated GPUs the code runs as it is, not compiled; the values are the same "
                "but for rounding",
                zh="torch.compile：在模拟 GPU 上，代码不经编译，按原样运行；除舍入误差外，数值相同",
            ),
            stacklevel=1,
        )
    if model is None:
        return lambda model: torch.compile(model, mode=mode, options=options, disable=disable, **asked)
    if mode is not None and options is not None:
        raise RuntimeError(
            "Either mode or options can be specified, but both can't be specified at the same time."
        )
    if disable:
        return model
    from torch import _dynamo

    return _dynamo.run(model)  # only what has been compiled before: nothing
