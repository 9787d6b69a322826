"""``torch.cuda.cudart()``: what torch.cuda itself uses of the CUDA runtime."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import NoReturn

import torch

from ...base.patches import Patch
from .. import hooks
from ..state.gpu import TheMachine
from ..state.in_use import machine_here
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
_ERRORS = {
    0: "no error", 1: "invalid argument", 2: "out of memory", 3: "initialization error", 4: "driver shutting down",
    35: "CUDA driver version is insufficient for CUDA runtime version",
    46: "all CUDA-capable devices are busy or unavailable", 98: "invalid device function",
    100: "no CUDA-capable device is detected", 101: "invalid device ordinal",
    209: "no kernel image is available for execution on the device", 400: "invalid resource handle",
    600: "device not ready", 700: "an illegal memory access was encountered",
    701: "too many resources requested for launch", 702: "the launch timed out and was terminated",
    704: "peer access is already enabled", 705: "peer access has not been enabled",
    710: "device-side assert triggered", 712: "part or all of the requested memory range is already mapped",
    713: "pointer does not correspond to a registered memory region", 716: "misaligned address",
    719: "unspecified launch failure",
    800: "operation not permitted", 801: "operation not supported", 999: "unknown error",
}  # fmt: skip


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
