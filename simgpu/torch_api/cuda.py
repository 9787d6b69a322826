"""The functions of ``torch._C`` that a CPU build lacks, answered by a simulated machine.

The Python code of ``torch.cuda`` and ``torch.accelerator`` runs unmodified on top of them.
"""

from __future__ import annotations

import logging
import types
import uuid
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any, NoReturn

import torch
from torch import Tensor

from labkit.base.patches import Patch

from .. import hooks
from ..rules.same_device import check_optimizer_entry
from ..state.current_machine import without_function_modes
from ..state.gpu import Gpu, TheMachine
from ..state.placement import gpu_of
from ..state.streams import CUDA, Stream
from .absent import absent, refusing
from .collectives import Collectives

# Properties of an invented GPU, in CUDA's units (bytes, kHz, counts).
_PROPERTIES: dict[str, Any] = {
    "is_integrated": 0, "is_multi_gpu_board": 0, "pci_device_id": 0, "pci_domain_id": 0,
    "max_threads_per_block": 1024, "warp_size": 32, "regs_per_multiprocessor": 65536,
    "shared_memory_per_block": 49152,
    "clock_rate": 1980000, "memory_clock_rate": 3201000, "memory_bus_width": 5120,
}  # fmt: skip


_CUDNN = 92000  # the version in PyTorch's builds for CUDA 13.0


class _Uuid:
    """Replacement of ``torch.cuda.get_device_properties(0).uuid``: 16 bytes, printed in hexadecimal."""

    def __init__(self, index: int) -> None:
        self._value = uuid.UUID(int=index)
        self.bytes = list(self._value.bytes)

    def __str__(self) -> str:
        return str(self._value)


class DeviceProperties:
    """The result of ``torch.cuda.get_device_properties``."""

    def __init__(self, gpu: Gpu) -> None:
        number = gpu.machine.numbers[gpu.index]
        vars(self).update(
            _PROPERTIES | gpu.machine.model.properties, total_memory=gpu.capacity, pci_bus_id=number,
            uuid=_Uuid(number),
        )  # fmt: skip

    def __repr__(self) -> str:
        return (
            f"_CudaDeviceProperties(name='{self.name}', major={self.major}, minor={self.minor}, "
            f"total_memory={self.total_memory // 1024**2}MB, "
            f"multi_processor_count={self.multi_processor_count}, "
            f"uuid={self.uuid}, pci_bus_id={self.pci_bus_id}, pci_device_id={self.pci_device_id}, "
            f"pci_domain_id={self.pci_domain_id}, L2_cache_size={self.L2_cache_size // 1024**2}MB)"
        )


# Constant answers: there is one context, no cache, and all work is done at once.
_CONSTANT: dict[str, Any] = {
    "_cuda_init": None, "_cuda_ipc_collect": None,
    "_cuda_getCompiledVersion": 13000,  # CUDA 13.0, as torch.version.cuda says
    "_cuda_getAllocatorBackend": "native",
    "_cuda_isCurrentStreamCapturing": False, "_accelerator_isAllocatorInitialized": True,
    "_accelerator_emptyHostCache": None, "_host_emptyCache": None, "_cuda_clearCublasWorkspaces": None,
}  # fmt: skip


# Made once: each call of torch.device passes the machine's mode.
_CPU_DEVICE, _CUDA_DEVICE = torch.device("cpu"), torch.device("cuda")

# Answers of one line, given the machine.
_ASKED: dict[str, Callable[..., Any]] = {
    "_cuda_getDeviceCount": lambda machine: len(machine.gpus),
    "_cuda_getDevice": lambda machine: machine.current.index,
    "_cuda_canDeviceAccessPeer": lambda machine, gpu, peer: machine.gpu(gpu) is not machine.gpu(peer),
    "_cuda_getCurrentStream": lambda machine, index: _numbers(machine.current.stream(index)),
    "_cuda_getCurrentRawStream": lambda machine, index: machine.current.stream(index).stream_id,
    "_cuda_getDefaultStream": lambda machine, index: (0, machine.gpu(index).index, CUDA),
    "_cuda_memoryStats": lambda machine, index: _memory_stats(machine.gpu(index)),
    "_cuda_getArchFlags": lambda machine: "sm_{major}{minor}".format(**machine.model.properties),
    "_cuda_getMemoryFraction": lambda machine, index: machine.gpu(index).fraction,
    "_get_accelerator": lambda machine, check=None: _CUDA_DEVICE if machine.gpus else _CPU_DEVICE,
    "_accelerator_getAccelerator": lambda machine: _CUDA_DEVICE if machine.gpus else None,
    "_accelerator_getStream": lambda machine, index: machine.current.stream(machine.gpu(index).index),
    "_accelerator_getMemoryInfo": lambda machine, index: memory_info(machine.gpu(index)),
    # A GPU has a context once it was chosen (since CUDA 12) or holds a tensor.
    "_cuda_hasPrimaryContext": lambda machine, index: (
        index in machine.chosen or machine.gpu(index).total() > 0
    ),
    "_cuda_resetPeakMemoryStats": lambda machine, index: machine.gpu(index).reset_peak(),
    "_accelerator_setStream": lambda machine, stream: machine.current.set_stream(stream),
}
_ASKED["_accelerator_getDeviceIndex"] = _ASKED["_cuda_getDevice"]
_ASKED["_accelerator_getDeviceStats"] = _ASKED["_cuda_memoryStats"]
_ASKED["_accelerator_resetPeakStats"] = _ASKED["_cuda_resetPeakMemoryStats"]


class CudaFunctions:
    """The other functions of ``torch._C`` for one machine, by name."""

    def __init__(self, machine: TheMachine) -> None:
        self._machine = machine
        self._benchmark_limit = 10  # aten/src/ATen/Context.h, benchmark_limit_cudnn

    def _cuda_setDevice(self, index: int) -> None:
        self._machine.current.index = chosen = self._machine.gpu(index).index
        self._machine.chosen.add(chosen)

    def _cuda_exchangeDevice(self, index: int) -> int:
        if index < 0:
            return -1
        before = self._machine.current.index
        self._cuda_setDevice(index)
        return before

    _cuda_maybeExchangeDevice = _cuda_exchangeDevice
    _accelerator_exchangeDevice = _accelerator_maybeExchangeDevice = _cuda_exchangeDevice

    def _accelerator_setDeviceIndex(self, index: int) -> None:
        self._cuda_exchangeDevice(index)

    def _accelerator_synchronizeDevice(self, index: int) -> None:
        self._machine.gpu(index)
        self._cuda_synchronize()

    def _cuda_synchronize(self) -> None:
        for wait in (*hooks.device_waited, *hooks.synchronized):
            wait(self._machine)

    def _accelerator_getDeviceCapability(self, index: int) -> NoReturn:
        # c10/core/impl/DeviceGuardImplInterface.h, not overridden by c10/cuda/impl/CUDAGuardImpl.h
        raise RuntimeError("Backend doesn't support getting device capabilities.")

    # Streams and time.
    def _cuda_setStream(self, stream_id: int, device_index: int, device_type: int) -> None:
        self._machine.current.set_stream(Stream(stream_id=stream_id, device_index=device_index))

    def _cuda_get_cudnn_benchmark_limit(self) -> int:
        return self._benchmark_limit

    def _cuda_set_cudnn_benchmark_limit(self, limit: int) -> None:
        self._benchmark_limit = limit

    def _cuda_sleep(self, cycles: int) -> None:
        self._machine.gpu(-1).clock.advance(cycles / 1.98e9)

    # Memory.

    def _cuda_resetAccumulatedMemoryStats(self, index: int) -> None:
        gpu = self._machine.gpu(index)
        gpu.total_at_reset = gpu.total()
        gpu.freed_at_reset = gpu.total_at_reset - gpu.live()

    _accelerator_resetAccumulatedStats = _cuda_resetAccumulatedMemoryStats

    def _cuda_setMemoryFraction(self, fraction: float, index: int) -> None:
        gpu = self._machine.gpu(index)
        gpu.fraction = fraction
        gpu.recount()

    def _cuda_emptyCache(self, *_: object) -> None:
        for gpu in self._machine.gpus:
            gpu.cache_emptied += 1

    _accelerator_emptyCache = _cuda_emptyCache

    # torch.optim.
    @without_function_modes
    def _group_tensors_by_device_and_dtype(
        self, tensorlists: list[list[Tensor | None]], with_indices: bool = False
    ) -> dict[tuple[torch.device, torch.dtype], tuple[list[list[Tensor | None]], list[int]]]:
        # As torch/csrc/utils/foreach.cpp and aten/src/ATen/native/ForeachUtils.h, _group_tensors_by_...: group by the
        # device and dtype of the parameters, the first list.
        groups: dict[tuple[torch.device, torch.dtype], list[int]] = {}
        for at, (first, *others) in enumerate(zip(*filter(None, tensorlists), strict=True)):
            gpu = gpu_of(first)
            check_optimizer_entry(others, gpu)
            # Without function modes, `first.device` is the CPU for a tensor on a GPU.
            key = first.device if gpu is None else gpu.device, first.dtype
            groups.setdefault(key, []).append(at)
        return {
            key: (
                [[row[at] for at in places] if row else [] for row in tensorlists],
                places if with_indices else [],
            )
            for key, places in groups.items()
        }


def _numbers(stream: Stream) -> tuple[int, int, int]:
    """Return the three numbers by which C++ passes a stream to torch.cuda."""
    return stream.stream_id, stream.device_index, CUDA


# CUDA's allocator has one pool for blocks of up to 1 MiB and one for larger ones, and allocates segments of at least
# 2 MiB (c10/core/AllocatorConfig.h, kSmallSize and kSmallBuffer).
SMALL, _SEGMENT = 1 << 20, 2 << 20


def _memory_stats(gpu: Gpu) -> dict[str, Any]:
    """Return the nested statistics of CUDA's allocator, with one block and one segment for each storage: no cache.

    "allocated" and "freed" count since the last reset (c10/core/CachingDeviceAllocator.h, Stat), so their difference is
    not "current". For pools and counts only the current value is known, and given for the others too.
    """
    live, total, blocks = gpu.recount(), gpu.total(), gpu.blocks()
    none = _make_stat(0)
    pools = {
        "all": blocks,
        "small_pool": [each for each in blocks if each[1] <= SMALL],
        "large_pool": [each for each in blocks if each[1] > SMALL],
    }
    size = {pool: _make_stat(sum(block * many for _, block, many in those)) for pool, those in pools.items()}
    requested = {
        pool: _make_stat(sum(bytes_ * many for bytes_, _, many in those)) for pool, those in pools.items()
    }
    number = {pool: _make_stat(sum(many for _, _, many in those)) for pool, those in pools.items()}
    size["all"] = {
        "current": live, "peak": gpu.peak, "allocated": total - gpu.total_at_reset,
        "freed": total - live - gpu.freed_at_reset,
    }  # fmt: skip
    requested["all"] = size["all"] | {"current": requested["all"]["current"]}
    kinds = (
        (size, ("allocated_bytes", "reserved_bytes", "active_bytes")),
        (requested, ("requested_bytes",)),
        (number, ("allocation", "segment", "active")),
        (dict.fromkeys(pools, none), ("inactive_split_bytes", "inactive_split")),
    )
    return {name: values for values, names in kinds for name in names} | {
        "oversize_allocations": none, "oversize_segments": none, "max_split_size": -1, "num_alloc_retries": 0,
        "num_ooms": gpu.failures, "num_sync_all_streams": gpu.cache_emptied,
        "num_device_alloc": -(-total // _SEGMENT), "num_device_free": (total - live) // _SEGMENT,
    }  # fmt: skip


def _make_stat(value: int) -> dict[str, int]:
    return {"current": value, "peak": value, "allocated": value, "freed": 0}


def memory_info(gpu: Gpu) -> tuple[int, int]:
    """Return the free bytes and the total."""
    return gpu.free(), gpu.capacity


def _memory_used(machine: TheMachine, device: Any = None) -> int:
    free, total = memory_info(machine.gpu(torch.cuda._get_device_index(device, True)))
    return total - free


class _Runtime(types.SimpleNamespace):
    """The functions of the CUDA runtime (``torch.cuda.cudart()``) that torch's own Python calls; others are refused."""

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):  # Python's own protocols
            raise AttributeError(name)
        refusing(f"_cudart.{name}")()


def _cudart(machine: TheMachine) -> _Runtime:
    return _Runtime(
        cudaError=type("cudaError", (int,), {"success": 0}),
        cudaMemGetInfo=lambda index: memory_info(machine.gpu(index)),
        cudaProfilerStart=lambda: 0, cudaProfilerStop=lambda: 0,
    )  # fmt: skip


_ANSWERED = ("_cuda_", "_accelerator_", "_get_accel", "_group", "_broadcast", "_scatter", "_gather")


def functions_of(machine: TheMachine) -> dict[str, Callable[..., Any]]:
    """Return the functions of ``machine`` by their names in ``torch._C``."""
    constant = {name: lambda *_, value=value: value for name, value in _CONSTANT.items()}
    answers = {name: partial(answer, machine) for name, answer in _ASKED.items()}
    methods = {
        name: getattr(provider, name)
        for provider in (make(machine) for make in (CudaFunctions, Collectives, *hooks.torch_c_answers))
        for name in dir(provider)
        if name.startswith(_ANSWERED)
    }
    return constant | answers | methods


@hooks.patches.add
def patches(machine: TheMachine) -> Iterator[Patch]:
    """Replace the functions of C++, and values cached by torch.cuda."""
    cuda, core, has_gpus = torch.cuda, torch._C, bool(machine.gpus)
    answered = functions_of(machine)
    yield from (Patch(core, name, function) for name, function in answered.items())
    # A CUDA build has the real functions, which must not reach the driver.
    for name in [name for name in dir(core) if name.startswith(("_cuda_", "_nccl_"))]:
        if name not in answered and not isinstance(getattr(core, name), type):
            yield Patch(core, name, refusing(name))
    yield Patch(core, "__getattr__", absent)
    yield Patch(core, "_has_cuda", has_gpus)
    # torch.cuda.graphs has another reference to this function, which optimizers call at every step.
    yield Patch(cuda.graphs, "_cuda_isCurrentStreamCapturing", answered["_cuda_isCurrentStreamCapturing"])
    yield Patch(cuda, "_exchange_device", answered["_cuda_exchangeDevice"])
    yield Patch(cuda, "_maybe_exchange_device", answered["_cuda_maybeExchangeDevice"])
    # Cached by GPU, not by number: ranks may see different GPUs under one number.
    properties = cache(DeviceProperties)
    yield Patch(cuda, "_get_device_properties", lambda index: properties(machine.gpu(index)))
    yield Patch(cuda, "_initialized", has_gpus)
    yield Patch(cuda, "_cudart", _cudart(machine))
    yield Patch(cuda, "_cached_device_count", None)
    # Without NVML, torch does not ask the driver for GPUs that it does not have (features/refused.py).
    yield Patch(cuda, "_HAS_PYNVML", False)
    yield Patch(cuda, "device_memory_used", partial(_memory_used, machine))
    yield Patch(cuda, "device_count", lambda: len(machine.gpus))
    yield Patch(cuda.nccl, "is_available", lambda tensors: False)
    if has_gpus and torch.version.cuda is None:
        yield Patch(torch.version, "cuda", "13.0")
        # A build for CUDA brings triton along: torch warns where it is missing, which here says nothing to the user.
        yield Patch(logging.getLogger("torch.utils.flop_counter"), "disabled", True)
    yield Patch(torch._C, "_has_cudnn", has_gpus or torch._C._has_cudnn)
    if has_gpus and not torch.backends.cudnn.version():
        yield Patch(torch.backends.cudnn, "version", lambda: _CUDNN)
    yield Patch(torch.backends.cudnn, "is_acceptable", lambda tensor: False)
    # The copy streams of scatter, one per GPU, belong to one machine.
    yield Patch(torch.nn.parallel._functions, "_streams", None)
