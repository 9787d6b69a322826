"""Let programs run that use profilers and NVTX ranges, though no time on a GPU is measured."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from typing import Any

import torch

from labkit.base.patches import Patch

from .. import hooks
from ..state.current_machine import replaces, without_function_modes
from ..state.gpu import TheMachine

_profiler: Any = torch.autograd.profiler


class _Ranges(threading.local):
    """The functions that ``torch.cuda.nvtx`` calls, with NVTX's depths and handles and no other effect."""

    def __init__(self) -> None:
        self._depth = 0
        self._handles = itertools.count(1)

    def rangePushA(self, message: str) -> int:
        self._depth += 1
        return self._depth - 1

    def rangePop(self) -> int:
        self._depth -= 1
        return self._depth

    def rangeStartA(self, message: str, stream: int = 0) -> int:
        return next(self._handles)

    def markA(self, *_: object) -> None:
        return None

    deviceRangeStart = rangeStartA
    rangeEnd = deviceRangeEnd = markA


@hooks.patches.add
def patches(machine: TheMachine) -> Iterator[Patch]:
    """Replace NVTX, and keep the profiler's C++ from function modes."""
    yield Patch(torch.cuda.nvtx, "_nvtx", _Ranges())
    # Optimizers name each step for the profiler. Through a function mode, this takes longer than the step of a small
    # model, because C++ looks the operator up in Python (torch/csrc/jit/python/pybind_utils.cpp).
    for name in ("__enter__", "__exit__"):
        yield Patch(
            _profiler.record_function, name, without_function_modes(getattr(_profiler.record_function, name))
        )


@replaces(_profiler.profile, "__init__")
def _start(_: TheMachine, real: Any, self: Any, *args: Any, **kwargs: Any) -> None:
    real(self, *args, **kwargs)
    # Otherwise the profiler times each operation with C++'s CUDA events, and prints an error for each.
    if getattr(self, "profiler_kind", None) is _profiler.ProfilerState.KINETO_GPU_FALLBACK:
        self.profiler_kind = _profiler.ProfilerState.KINETO
