"""What ``torch.cuda`` and ``torch.accelerator`` call in C++, answered by a simulated machine.

torch.cuda's own Python code runs unmodified on top of these: only the functions of ``torch._C`` that a
CPU build lacks are filled in, each method here under its own name.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from ...base.patches import Patch
from ..in_use import machine_here
from ..state.gpu import Gpu
from ..state.placement import gpu_of
from ..state.streams import CUDA, Stream
from .collectives import Collectives
from .refused import absent, refusing

if TYPE_CHECKING:
    from ..machine import Machine

_POOLS = ("all", "small_pool", "large_pool")


class DeviceProperties:
    """What ``torch.cuda.get_device_properties`` returns. Bytes and counts as CUDA gives them."""

    def __init__(self, gpu: Gpu) -> None:
        self.name = "labkit simulated GPU"
        self.major, self.minor = 9, 0
        self.total_memory = gpu.capacity
        self.multi_processor_count = gpu.cores
        self.is_integrated = 0
        self.is_multi_gpu_board = 0
        self.max_threads_per_multi_processor = 2048
        self.max_threads_per_block = 1024
        self.warp_size = 32
        self.regs_per_multiprocessor = 65536
        self.shared_memory_per_block = 49152
        self.shared_memory_per_block_optin = 232448
        self.shared_memory_per_multiprocessor = 233472
        self.L2_cache_size = 50 * 1024**2
        self.clock_rate = 1980000
        self.memory_clock_rate = 3201000
        self.memory_bus_width = 5120
        self.gcnArchName = "labkit"
        self.uuid = f"00000000-0000-0000-0000-{gpu.index:012d}"
        self.pci_bus_id, self.pci_device_id, self.pci_domain_id = gpu.index, 0, 0

    def __repr__(self) -> str:
        return (
            f"_CudaDeviceProperties(name='{self.name}', major={self.major}, minor={self.minor}, "
            f"total_memory={self.total_memory // 1024**2}MB, "
            f"multi_processor_count={self.multi_processor_count}, "
            f"uuid={self.uuid}, L2_cache_size={self.L2_cache_size // 1024**2}MB)"
        )


class CudaFunctions:
    """The functions of ``torch._C`` for one machine, by name."""

    def __init__(self, machine) -> None:
        self._machine = machine
        self._sync_debug = 0

    # Devices.
    def _cuda_init(self):
        return None

    def _cuda_getDeviceCount(self):
        return len(self._machine.gpus)

    def _cuda_getDevice(self):
        return self._machine.current.index

    def _cuda_setDevice(self, index):
        self._machine.current.index = self._machine.gpu(index).index

    def _cuda_exchangeDevice(self, index):
        before = self._machine.current.index
        if index < 0:
            return -1
        self._cuda_setDevice(index)
        return before

    _cuda_maybeExchangeDevice = _cuda_exchangeDevice

    def _cuda_canDeviceAccessPeer(self, device, peer):
        return self._machine.gpu(device) is not self._machine.gpu(peer)

    def _cuda_getCompiledVersion(self):
        return 13000  # CUDA 13.0, as torch.version.cuda says

    def _cuda_getArchFlags(self):
        return "sm_90"

    def _cuda_isHistoryEnabled(self):
        return False

    def _cuda_get_sync_debug_mode(self):
        return self._sync_debug

    def _cuda_set_sync_debug_mode(self, value):
        self._sync_debug = value

    def _cuda_isCurrentStreamCapturing(self):
        return False

    def _cuda_ipc_collect(self):
        return None

    # Streams and time.
    def _cuda_synchronize(self):
        return None

    def _cuda_getCurrentStream(self, index):
        stream = self._machine.current.stream(index)
        return stream.stream_id, stream.device_index, CUDA

    def _cuda_getCurrentRawStream(self, index):
        return self._machine.current.stream(index).stream_id

    def _cuda_getDefaultStream(self, index):
        return 0, self._machine.gpu(index).index, CUDA

    def _cuda_setStream(self, stream_id, device_index, device_type):
        stream = Stream(stream_id=stream_id, device_index=device_index)
        self._machine.current.set_stream(stream)

    def _cuda_sleep(self, cycles):
        gpu = self._machine.gpus[self._machine.current.index]
        gpu.clock.advance(cycles / 1.98e9)

    # Memory.
    def _cuda_memoryStats(self, index):
        return _memory_stats(self._machine.gpu(index))

    def _cuda_resetPeakMemoryStats(self, index):
        self._machine.gpu(index).reset_peak()

    def _cuda_resetAccumulatedMemoryStats(self, index):
        gpu = self._machine.gpu(index)
        gpu.total_at_reset = gpu.total()

    def _cuda_emptyCache(self):
        return None

    def _cuda_getMemoryFraction(self, index):
        return self._machine.gpu(index).fraction

    def _cuda_setMemoryFraction(self, fraction, index):
        gpu = self._machine.gpu(index)
        gpu.fraction = fraction
        gpu.recount()

    def _cuda_memorySnapshot(self, *_):
        segments = [
            {
                "device": gpu.index, "address": 0, "total_size": gpu.live(), "allocated_size": gpu.live(),
                "active_size": gpu.live(), "requested_size": gpu.live(), "stream": 0, "segment_type": "large",
                "segment_pool_id": (0, 0), "is_expandable": False, "frames": [], "blocks": [],
            }
            for gpu in self._machine.gpus
            if gpu.live()
        ]  # fmt: skip
        return {
            "segments": segments,
            "device_traces": [],
            "allocator_settings": {},
            "external_annotations": [],
        }

    def _cuda_getAllocatorBackend(self):
        return "native"

    # torch.accelerator.
    def _accelerator_getAccelerator(self):
        return torch.device("cuda") if self._machine.gpus else None

    def _accelerator_getDeviceIndex(self):
        return self._machine.current.index

    def _accelerator_setDeviceIndex(self, index):
        if index >= 0:
            self._cuda_setDevice(index)

    def _accelerator_exchangeDevice(self, index):
        return self._cuda_exchangeDevice(index)

    _accelerator_maybeExchangeDevice = _accelerator_exchangeDevice

    def _accelerator_getStream(self, index):
        return self._machine.current.stream(self._machine.gpu(index).index)

    def _accelerator_setStream(self, stream):
        self._machine.current.set_stream(stream)

    def _accelerator_synchronizeDevice(self, index):
        self._machine.gpu(index)

    def _accelerator_isAllocatorInitialized(self):
        return True

    def _accelerator_emptyCache(self):
        return None

    def _accelerator_emptyHostCache(self):
        return None

    def _accelerator_getDeviceStats(self, index):
        return _memory_stats(self._machine.gpu(index))

    def _accelerator_resetPeakStats(self, index):
        self._cuda_resetPeakMemoryStats(index)

    def _accelerator_resetAccumulatedStats(self, index):
        self._cuda_resetAccumulatedMemoryStats(index)

    def _accelerator_getMemoryInfo(self, index):
        return _memory_info(self._machine.gpu(index))

    def _accelerator_getDeviceCapability(self, index):
        self._machine.gpu(index)
        return {
            "supported_dtypes": {value for value in vars(torch).values() if isinstance(value, torch.dtype)}
        }

    def _get_accelerator(self, check=None):
        return torch.device("cuda" if self._machine.gpus else "cpu")

    def _group_tensors_by_device_and_dtype(self, tensorlists, with_indices=False):
        groups = {}
        with torch._C.DisableTorchFunction():
            for at, first in enumerate(tensorlists[0]):
                tensor = (
                    first
                    if first is not None
                    else next(row[at] for row in tensorlists if row[at] is not None)
                )
                gpu = gpu_of(tensor)
                key = (tensor.device if gpu is None else gpu.device, tensor.dtype)
                if key not in groups:
                    groups[key] = [[] for _ in tensorlists], []
                self._check_together(key, at, tensorlists)
                lists, indices = groups[key]
                for group, row in zip(lists, tensorlists, strict=True):
                    if row:
                        group.append(row[at])
                if with_indices:
                    indices.append(at)
        return groups

    def _check_together(self, key, at, tensorlists) -> None:
        """A parameter, its gradient and its state belong on one device; a step count may be on the host."""
        for row in tensorlists:
            tensor = row[at] if row else None
            if tensor is None:
                continue
            gpu = gpu_of(tensor)
            if (tensor.device if gpu is None else gpu.device) != key[0] and (gpu is not None or tensor.dim()):
                raise RuntimeError(
                    "Tensors of the same index must be on the same device and the same dtype except `step` "
                    "tensors that can be CPU and float32/64 notwithstanding"
                )


def _memory_stats(gpu: Gpu) -> dict:
    """The nested statistics of CUDA's allocator. There is no cache: what is reserved is what is allocated."""
    live = gpu.recount()
    total = gpu.total() - gpu.total_at_reset

    def amount(current, peak, allocated):
        values = {"current": current, "peak": peak, "allocated": allocated, "freed": allocated - current}
        none = dict.fromkeys(values, 0)
        return {pool: values if pool != "small_pool" else none for pool in _POOLS}

    count = gpu.count()
    stats = {
        name: amount(live, gpu.peak, total)
        for name in ("allocated_bytes", "reserved_bytes", "active_bytes", "requested_bytes")
    }
    stats["inactive_split_bytes"] = amount(0, 0, 0)
    for name in ("allocation", "segment", "active"):
        stats[name] = amount(count, count, count)
    stats["inactive_split"] = amount(0, 0, 0)
    none = {"current": 0, "peak": 0, "allocated": 0, "freed": 0}
    return stats | {
        "oversize_allocations": none, "oversize_segments": none, "max_split_size": -1, "num_alloc_retries": 0,
        "num_ooms": gpu.failures, "num_sync_all_streams": 0, "num_device_alloc": 0, "num_device_free": 0,
    }  # fmt: skip


def _cudart() -> types.SimpleNamespace:
    """Stands for ``torch.cuda.cudart()``: what torch.cuda itself uses of the CUDA runtime."""
    runtime = types.SimpleNamespace()
    runtime.cudaError = type("cudaError", (int,), {"success": 0})
    runtime.cudaGetErrorString = lambda code: "unknown error" if int(code) else "no error"
    runtime.cudaMemGetInfo = lambda index: _memory_info(machine_here().gpu(index))
    runtime.cudaProfilerStart = runtime.cudaProfilerStop = lambda: 0
    runtime.cudaHostRegister = runtime.cudaHostUnregister = lambda *_: 0
    return runtime


def _memory_info(gpu: Gpu) -> tuple[int, int]:
    """The bytes that are free, and all."""
    return gpu.free(), gpu.capacity


def functions_of(provider) -> dict[str, object]:
    """The functions that ``provider`` stands in for, by their name in ``torch._C``."""
    return {
        name: getattr(provider, name)
        for name in dir(provider)
        if name.startswith(
            ("_cuda_", "_accelerator_", "_get_accel", "_group", "_broadcast", "_scatter", "_gather")
        )
        and callable(getattr(provider, name))
    }


def patches(machine: Machine) -> Iterator[Patch]:
    """What torch.cuda and torch.accelerator ask of C++, and what they have looked up there before."""
    cuda, core = torch.cuda, torch._C
    has_gpus = bool(machine.gpus)
    api = CudaFunctions(machine)
    answered = functions_of(api) | functions_of(Collectives(machine))
    for name, function in answered.items():
        yield Patch(core, name, function)
    # A CUDA build has the real functions: what is not simulated must not reach the driver.
    for name in dir(core):
        if (
            name.startswith(("_cuda_", "_nccl_"))
            and name not in answered
            and not isinstance(getattr(core, name), type)
        ):
            yield Patch(core, name, refusing(name))
    yield Patch(core, "__getattr__", absent)
    yield Patch(core, "_has_cuda", has_gpus)
    # torch.cuda.graphs has its own name for this one; optimizers ask it at every step.
    yield Patch(cuda.graphs, "_cuda_isCurrentStreamCapturing", api._cuda_isCurrentStreamCapturing)
    yield Patch(cuda, "_exchange_device", api._cuda_exchangeDevice)
    yield Patch(cuda, "_maybe_exchange_device", api._cuda_maybeExchangeDevice)
    yield Patch(cuda, "_get_device_properties", lambda index: DeviceProperties(machine.gpu(index)))
    yield Patch(cuda, "_cudart", _cudart())
    yield Patch(cuda, "_initialized", has_gpus)
    yield Patch(cuda, "_cached_device_count", None)
    yield Patch(cuda, "_device_count_nvml", lambda: -1)
    yield Patch(cuda, "device_count", lambda: len(machine.gpus))
    yield Patch(cuda, "_check_capability", lambda: None)
    yield Patch(cuda.nccl, "is_available", lambda tensors: False)
    if has_gpus and torch.version.cuda is None:
        yield Patch(torch.version, "cuda", "13.0")
    yield Patch(torch.backends.cudnn, "is_acceptable", lambda tensor: False)
    # PyTorch keeps the copy streams of its scatter here, one per GPU of the machine they were made for.
    yield Patch(torch.nn.parallel._functions, "_streams", None)
