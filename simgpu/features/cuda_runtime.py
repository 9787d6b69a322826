"""The functions of the CUDA runtime (``torch.cuda.cudart()``) that torch's own Python calls."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import NoReturn

import torch

from labkit.base.patches import Patch

from .. import hooks
from ..state.current_machine import require_machine
from ..state.gpu import TheMachine
from ..torch_api.absent import refusing
from ..torch_api.cuda import memory_info


class _Runtime(types.SimpleNamespace):
    """The module of the CUDA runtime's functions, which refuses missing ones by name."""

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):  # Python's own protocols
            raise AttributeError(name)
        refusing(f"_cudart.{name}")()


def _cudart() -> types.SimpleNamespace:
    runtime = _Runtime()
    runtime.cudaError = type("cudaError", (int,), {"success": 0})
    runtime.cudaMemGetInfo = lambda index: memory_info(require_machine().gpu(index))
    runtime.cudaProfilerStart = runtime.cudaProfilerStop = lambda: 0
    return runtime


@hooks.patches.add
def patches(machine: TheMachine) -> Iterator[Patch]:
    """Replace the runtime kept by torch.cuda after the first use."""
    yield Patch(torch.cuda, "_cudart", _cudart())
