"""Refuse parts of torch that a simulated machine lacks: graphs, memory pools, DLPack, Triton, export.

NCCL is refused too, on a machine that the program itself opened.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.utils.dlpack import DLDeviceType

from labkit.base.language import say
from labkit.base.patches import Patch
from labkit.base.texts import texts_beside

from .. import hooks
from ..handlers import functions_in_row, handles
from ..state.current_machine import replaces
from ..state.gpu import TheMachine
from ..state.placement import gpu_of
from ..torch_api.absent import Absent, refusing

_TEXTS = texts_beside(__file__)


def _refuse(what: str, *_: object, **__: object) -> NoReturn:
    raise Absent(str(_TEXTS[what]))


@handles(*functions_in_row("plans of transforms"))
def _refuse_plans(mode: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> NoReturn:
    _refuse("plans")


@handles(Tensor.__dlpack_device__)
def _dlpack_device(mode: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    gpu = gpu_of(args[0])
    return func(*args, **kwargs) if gpu is None else (DLDeviceType.kDLCUDA, gpu.index)


@handles(Tensor.__dlpack__)
def _dlpack(mode: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if gpu_of(args[0]) is not None:
        _refuse("dlpack")
    return func(*args, **kwargs)


@replaces(torch._C, "_to_dlpack", "_to_dlpack_versioned")
@replaces(torch.utils.dlpack, "to_dlpack")
@replaces(torch, "to_dlpack")
def _to_dlpack(machine: TheMachine, real: Any, data: Any, **options: Any) -> Any:
    if isinstance(data, Tensor) and gpu_of(data) is not None:
        _refuse("dlpack")
    return real(data, **options)


@hooks.patches.add
def patches(machine: TheMachine) -> Iterator[Patch]:
    """Refuse classes and functions of Python. torch_api/cuda.py refuses the functions of torch._C."""
    cuda = torch.cuda
    # On a CUDA build, the bases in torch._C are classes of C++, which cannot be patched.
    yield Patch(cuda.CUDAGraph, "__new__", refusing("_CUDAGraph"))
    yield Patch(cuda.MemPool, "__new__", refusing("_MemPool"))
    yield Patch(cuda.ExternalStream, "__new__", refusing("_CudaStreamBase"))
    yield Patch(cuda.graphs, "_graph_pool_handle", refusing("_graph_pool_handle"))
    # torch._inductor, imported by torch._dynamo.reset(), imports this class where CUDA is available.
    name = "_cuda_CUDAAllocator_AllocatorState"
    if not hasattr(torch._C, name):
        yield Patch(torch._C, name, type(name, (), {"__new__": refusing(name)}))
    # The driver (NVML) does not know simulated GPUs.
    for name in ("utilization", "temperature", "power_draw", "clock_rate", "memory_usage"):
        yield Patch(cuda, name, partial(_refuse, "driver"))
    for owner in (cuda, cuda.memory):
        yield Patch(owner, "list_gpu_processes", partial(_refuse, "driver"))
    # torch.cuda._sanitizer and _gpu_trace want callbacks that would never be called.
    yield Patch(torch._C, "_activate_gpu_trace", refusing("_activate_gpu_trace"))
    for owner in (torch.library, torch._library.triton):
        yield Patch(owner, "wrap_triton", partial(_refuse, "triton"))
    # The fake tensors of export call C++'s CUDA, which ends the process on a build without it.
    for name in ("export", "draft_export"):
        yield Patch(torch.export, name, partial(_refuse, "export"))
    if torch.distributed.is_available():
        yield Patch(
            torch.distributed.distributed_c10d, "BarrierOptions", _host_barrier_options_class(machine)
        )


def _make(
    _: TheMachine, real: Any, size: int, rank: int, ranks: Any, backend: Any, *args: Any, **kwargs: Any
) -> Any:
    """Refuse a process group for NCCL, and name the alternatives."""
    config: Any = torch.distributed.distributed_c10d.BackendConfig
    if "nccl" in config(backend).get_device_backend_map().values():
        raise RuntimeError(
            # PyTorch's own words, and what to do.
            "Distributed package doesn't have NCCL built in"
            + say(
                en=": a simulated machine that a program opened itself has none. Run the script with `labkit "
                "torchrun` or `labkit run`, or the cell with %%ranks. "
                'init_process_group("gloo") works here too, for tensors on the GPUs as well',
                zh="：程序自己打开的模拟机器没有 NCCL。脚本请用 `labkit torchrun` 或 `labkit run` 运行，"
                "单元格请用 %%ranks。"
                '这里也可以用 init_process_group("gloo")，GPU 上的张量也行',
            )
        )
    return real(size, rank, ranks, backend, *args, **kwargs)


if torch.distributed.is_available():
    replaces(torch.distributed.distributed_c10d, "_new_process_group_helper")(_make)


def _host_barrier_options_class(machine: TheMachine) -> type:
    """Return a BarrierOptions class that accepts a simulated GPU as device, and stores the CPU instead.

    C++ allocates the barrier's tensor on the stored device (torch/csrc/distributed/c10d/ProcessGroup.hpp, barrier).
    """
    real: Any = torch.distributed.distributed_c10d.BarrierOptions

    def set_device(options: Any, wanted: torch.device) -> None:
        gpu = machine.resolve(wanted)
        real.device.__set__(options, torch.device("cpu") if gpu is not None else wanted)

    class BarrierOptions(real):  # type: ignore[misc]
        device = property(real.device.__get__, set_device)

    return BarrierOptions
