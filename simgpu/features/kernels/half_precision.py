"""Compute convolutions and attention's backward in half precision as float32, and round once.

CUDA sums in float32 too; the CPU's kernels in half precision take many times as long. Tensors on the host keep these.
The kernel is replaced in the dispatcher, below autograd, so the graph and its saved tensors stay the same. The
replacement begins with the first such call, because each call then passes through Python.

Which order CUDA's kernels sum in, and what they round in between (attention's probabilities), is not simulated.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from labkit.base.files import rows_beside
from labkit.base.patches import Patch
from labkit.base.tree import map_tensors

from ... import hooks
from ...handlers import HANDLERS, ByDtype, functions_in_row
from ...state.current_machine import work
from ...state.gpu import TheMachine
from ...state.placement import gpu_of

_here = threading.local()


@hooks.backward_contexts.add
@contextmanager
def _note_backward_start(machine: TheMachine, outputs: Any) -> Iterator[None]:
    """Note whether a backward pass begins on a GPU: the engine's unmarked tensors then count as on a GPU, too."""
    before = getattr(_here, "on_gpu", False)
    _here.on_gpu = any(isinstance(output, Tensor) and gpu_of(output) is not None for output in outputs)
    try:
        yield
    finally:
        _here.on_gpu = before


def _is_on_gpu(tensor: Tensor) -> bool:
    if gpu_of(tensor) is not None:
        return True
    if work.engine:
        return getattr(_here, "on_gpu", False)
    # A copy made by autocast has no mark. The CPU's autocast is on only for tensors on a GPU (../autocast.py).
    return torch.is_autocast_enabled("cuda") and torch.is_autocast_enabled("cpu")


def _make_rounding_kernel(name: str, dtypes: set[torch.dtype]) -> Callable[..., Any]:
    real: Any = torch.library.get_kernel(f"aten::{name}", "CPU").call_boxed

    def run(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        narrow = args[0].dtype
        if narrow not in dtypes or args[1].dtype is not narrow or not _is_on_gpu(args[1]):
            return real(keyset, *args, **kwargs)  # refuses mixed dtypes

        bias = args[2] if name == "convolution" else None
        with torch._C.DisableTorchFunction():  # temporary tensors take no room on the GPU
            if bias is not None:
                args = (*args[:2], None, *args[3:])
            found = real(keyset, *map_tensors(args, widen), **map_tensors(kwargs, widen))
            found = map_tensors(found, lambda _, tensor: tensor.to(narrow))
            if (
                bias is not None
            ):  # cuDNN's result is rounded before it is added (aten/src/ATen/native/Convolution.cpp)
                found.add_(bias.view(-1, *[1] * (found.dim() - 2)))
            return found

    def widen(_: str, tensor: Tensor) -> Tensor:
        return tensor.float() if tensor.dtype in dtypes else tensor

    return run


@hooks.half_precision.add
def begin(machine: TheMachine) -> None:
    """Replace the kernels while ``machine`` is in use."""
    if _registrations():
        return
    library: Any = torch._C._dispatch_library("IMPL", "aten", "", __file__, 0)
    for name, dtypes in rows_beside(__file__):
        kernel = _make_rounding_kernel(name, {getattr(torch, dtype) for dtype in dtypes.split()})
        library.impl(name, "CPU", kernel, True)
    _registrations().append(library)


def _registrations() -> list[Any]:
    """Return the list that keeps the registration of our kernels alive."""
    registrations: list[Any] = vars(torch.library).get("_labkit_kernels", [None])
    return registrations


@hooks.patches.add
def patches(machine: TheMachine) -> Iterator[Patch]:
    """Remove the kernels with the machine."""
    yield Patch(torch.library, "_labkit_kernels", [])


def _first(mode: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    begin(mode.machine)
    return mode.general(func, args, kwargs)


for _function in functions_in_row("convolutions"):
    by_dtype = HANDLERS.setdefault(_function, ByDtype())
    if isinstance(by_dtype, ByDtype):
        by_dtype[torch.float16] = _first
