"""``torch.compile`` in ranks: a compiler does not see simulated GPUs, so code runs as it is, and this is said.

The values are those of the compiled code but for rounding, and the wrapper is PyTorch's own: its weights are called
``_orig_mod…`` in checkpoints. What only a compiler finds (a break of the graph under ``fullgraph=True``) is not found.
"""

from __future__ import annotations

import multiprocessing
import os
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist

from ...base.language import say
from ...base.patches import Patch


def _is_a_rank() -> bool:
    """Whether torchrun's environment, ``mp.spawn`` or a group says so: any process of a machine may become one."""
    return "RANK" in os.environ or multiprocessing.parent_process() is not None or dist.is_initialized()


def patches() -> Iterator[Patch]:
    """The row by which scripts of ranks go on where a machine refuses."""
    told: list[bool] = []
    alone = torch.compile  # refuses, as the machine does

    def tell() -> None:
        if not told and os.environ.get("RANK", "0") == "0":
            told.append(True)
            warnings.warn(
                say(
                    en="torch.compile: on simulated GPUs the code runs as it is, not compiled; the values are the same "
                    "but for rounding",
                    zh="torch.compile：在模拟 GPU 上，代码不经编译，按原样运行；除舍入误差外，数值相同",
                ),
                stacklevel=3,
            )

    def compile_(
        model: Callable[..., Any] | None = None, *, mode: Any = None, options: Any = None, disable: bool = False,
        **asked: Any,
    ) -> Any:  # fmt: skip
        if not _is_a_rank():
            return alone(model, mode=mode, options=options, disable=disable, **asked)
        tell()
        if model is None:
            return lambda model: compile_(model, mode=mode, options=options, disable=disable, **asked)
        if mode is not None and options is not None:
            raise RuntimeError(
                "Either mode or options can be specified, but both can't be specified at the same time."
            )
        if disable:
            return model
        from torch import _dynamo

        return _dynamo.run(model)  # only what has been compiled before: nothing

    yield Patch(torch, "compile", compile_)
