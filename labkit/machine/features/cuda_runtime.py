"""Rare calls of ``torch.cuda``: what it uses itself of the CUDA runtime (``cudart()``), raw memory, cuBLAS's handle,
cuFFT's plans, the counts of pinned memory.
"""

from __future__ import annotations

import types
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NoReturn
from weakref import WeakKeyDictionary

import torch

from ...base.files import rows_beside
from ...base.patches import Patch
from ...base.tree import tensors_in
from .. import hooks
from ..handlers import Handler, around, handles, listed
from ..state.gpu import TheMachine
from ..state.in_use import machine_here
from ..state.marks import Mark
from ..state.placement import ever_pinned, gpu_of, pinned
from ..torch_api.absent import refusing
from ..torch_api.cuda import memory_info
from .pinned import register, unregister


class _Runtime(types.SimpleNamespace):
    """A module of the CUDA runtime's functions, that refuses those it lacks by name."""

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):  # Python's own questions
            raise AttributeError(name)
        refusing(f"_cudart.{name}")()


# From the documentation of the CUDA runtime (cudaError_t).
_ERRORS = {int(code): words for code, words in rows_beside(__file__)}


def _cudart() -> types.SimpleNamespace:
    runtime = _Runtime()
    runtime.cudaError = type("cudaError", (int,), {"success": 0})
    runtime.cudaGetErrorString = lambda code: _ERRORS.get(int(code), "unrecognized error code")
    runtime.cudaMemGetInfo = lambda index: memory_info(machine_here().gpu(index))
    runtime.cudaProfilerStart = runtime.cudaProfilerStop = lambda: 0
    runtime.cudaHostRegister = register
    runtime.cudaHostUnregister = unregister
    return runtime


@hooks.patches.add
def patches(machine: TheMachine) -> Iterator[Patch]:
    """torch.cuda looks the runtime up once and keeps it."""
    yield Patch(torch.cuda, "_cudart", _cudart())


@hooks.answers.add
class _Raw:
    def __init__(self, machine: TheMachine) -> None:
        self._machine = machine
        self._held: dict[int, Mark] = {}  # each reference to a mark counts as a storage
        self._next = 1 << 46

    def _cuda_cudaCachingAllocator_raw_alloc(self, size: int, stream: int) -> int:
        gpu = self._machine.gpu(None)
        gpu.make_room(size, written=False)
        address = self._next
        self._held[address] = mark = gpu.new_mark(size)
        self._next += mark.block
        gpu.room -= mark.block
        gpu.recount()
        return address

    def _cuda_cudaCachingAllocator_raw_delete(self, address: int) -> None:
        if address and self._held.pop(address, None) is None:
            raise RuntimeError(f"invalid device pointer: {address:#x}")

    def _cuda_getCurrentBlasHandle(self) -> int:
        return (1 << 45) + self._machine.current.index

    def _cuda_hostMemoryStats(self) -> dict[str, Any]:
        counts, sizes = _stat(len(pinned), ever_pinned[0]), _stat(sum(pinned.values()), ever_pinned[1])
        untimed = dict.fromkeys(("total", "max", "min", "count", "avg"), 0)
        return {
            "allocations": counts, "allocated_bytes": sizes, "active_requests": counts, "active_bytes": sizes,
            "num_host_alloc": counts["allocated"], "num_host_free": counts["freed"],
            "host_alloc_time": untimed, "host_free_time": untimed,
        }  # fmt: skip


def _stat(now: int, ever: int) -> dict[str, int]:
    return {"current": now, "peak": ever, "allocated": ever, "freed": ever - now}


class _Plans(dict[Any, None]):
    """The calls for which cuFFT has made a plan on one GPU, the last one last (cuda/CuFFTPlanCache.h)."""

    most = 4096

    def shrink(self) -> None:
        while len(self) > self.most:
            del self[next(iter(self))]


# Of each machine, by the GPU's number.
_plans: WeakKeyDictionary[TheMachine, defaultdict[int, _Plans]] = WeakKeyDictionary()


def _plans_of(machine: TheMachine, index: int) -> _Plans:
    return _plans.setdefault(machine, defaultdict(_Plans))[index]


@around(*listed("Fourier transforms"))
def _transform(go_on: Handler, mode: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    result = go_on(mode, func, args, kwargs)
    tensors = tensors_in(args, kwargs)
    gpu = gpu_of(tensors[0]) if tensors else None
    if gpu is not None:
        plan = func.__name__, tensors[0].shape, tensors[0].dtype, repr((args[1:], kwargs.get("dim")))
        plans = _plans_of(mode.machine, gpu.index)
        plans.pop(plan, None)
        plans[plan] = None
        plans.shrink()
    return result


@handles(*listed("plans of transforms"))
def _plan_cache(mode: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    (index, *more), machine, name = args, mode.machine, func.__name__
    if not 0 <= index < len(machine.gpus):
        raise RuntimeError(
            f"{name[1:]}: expected 0 <= device index < {len(machine.gpus)}, but got device with index {index}"
        )
    plans = _plans_of(machine, index)
    if "set" in name:
        if more[0] < 0:
            raise RuntimeError(f"cuFFT plan cache max size must be non-negative, but got {more[0]}")
        plans.most = more[0]
        plans.shrink()
    elif "clear" in name:
        plans.clear()
    else:
        return plans.most if "max" in name else len(plans)
    return None
