"""Everything that changes in torch while a simulated machine is in use, in one place."""

from __future__ import annotations

import functools
import sys

import torch

from ..ops import autocast, gradients, saved_tensors, scripts, storages, types
from ..state import threads
from ..state.gpu import HOST, MARK
from ..state.random import Generator
from ..state.streams import Current, record_stream, stream_classes
from . import processes, profiling
from .collectives import Collectives
from .cuda import Absent, CudaFunctions, DeviceProperties, absent, cudart, functions_of, missing


def install(machine, patches, machine_in_use) -> None:
    """Make torch see ``machine``. Every change goes through ``patches``, which can undo it."""
    cuda, core = torch.cuda, torch._C
    has_gpus = bool(machine.gpus)

    patches.set(torch.UntypedStorage, MARK, HOST)
    patches.set(torch.UntypedStorage, "_labkit_pinned", False)

    Stream, Event = stream_classes(machine_in_use, torch.Stream, torch.Event)
    machine.stream_class = Stream
    chosen = machine.current.index if machine.resumed else 0
    machine.current = Current(machine, Stream)
    machine.current.index = chosen
    for owner in (torch, cuda, cuda.streams):
        patches.set(owner, "Stream", Stream)
        patches.set(owner, "Event", Event)
    patches.set(torch.Tensor, "record_stream", record_stream)
    for owner in (torch, core):
        patches.set(owner, "Generator", Generator)
    patches.set(cuda, "default_generators", machine.random.generators)

    api = CudaFunctions(machine)
    provided = functions_of(api) | functions_of(Collectives(machine))
    for name in dir(core):
        # A CUDA build has the real functions: what is not simulated must not reach the driver.
        if name.startswith(("_cuda_", "_nccl_")) and not isinstance(getattr(core, name), type):
            patches.set(core, name, provided.get(name) or functools.partial(missing, name))
    for name, function in provided.items():
        if vars(core).get(name) is not function:
            patches.set(core, name, function)
    patches.set(core, "__getattr__", absent)
    # torch.cuda.graphs has its own name for this one; optimizers ask it at every step.
    patches.set(cuda.graphs, "_cuda_isCurrentStreamCapturing", api._cuda_isCurrentStreamCapturing)
    # Their bases in torch._C are C++ classes on a CUDA build: Python's own classes are what can be stopped.
    for owner, name in (
        (cuda.CUDAGraph, "_CUDAGraph"), (cuda.MemPool, "_MemPool"), (cuda.ExternalStream, "_CudaStreamBase"),
    ):  # fmt: skip
        patches.set(owner, "__new__", functools.partial(missing, name))
    patches.set(cuda.graphs, "_graph_pool_handle", functools.partial(missing, "_graph_pool_handle"))
    patches.set(core, "_has_cuda", has_gpus)
    patches.set(cuda, "_exchange_device", api._cuda_exchangeDevice)
    patches.set(cuda, "_maybe_exchange_device", api._cuda_maybeExchangeDevice)
    patches.set(cuda, "_get_device_properties", lambda index: DeviceProperties(machine.gpu(index)))
    patches.set(cuda, "_cudart", cudart(machine_in_use))
    patches.set(cuda, "_initialized", has_gpus)
    patches.set(cuda, "_cached_device_count", None)
    patches.set(cuda, "_device_count_nvml", lambda: -1)
    patches.set(cuda, "device_count", lambda: len(machine.gpus))
    patches.set(cuda, "_check_capability", lambda: None)
    patches.set(cuda.nccl, "is_available", lambda tensors: False)
    if has_gpus and torch.version.cuda is None:
        patches.set(torch.version, "cuda", "13.0")
    patches.set(torch.backends.cudnn, "is_acceptable", lambda tensor: False)
    # PyTorch keeps the copy streams of its scatter here, one per GPU of the machine they were made for.
    patches.set(sys.modules["torch.nn.parallel._functions"], "_streams", None)
    patches.set(torch, "compile", _no_compile)
    # Their fake tensors ask C++ for CUDA, which ends the process where there is none.
    for name in ("export", "draft_export"):
        patches.set(torch.export, name, _no_export)

    types.install(patches)
    scripts.install(patches, machine_in_use)
    storages.install(patches)
    gradients.install(patches, machine_in_use)
    saved_tensors.install(patches, machine_in_use)
    if machine.backing.type == "cpu":  # a real GPU has CUDA's own autocast
        autocast.install(patches)
    threads.install(patches, machine_in_use)
    processes.install(machine, patches, machine_in_use)
    profiling.install(patches)


def _no_export(*args, **kwargs):
    raise Absent(
        "torch.export does not see labkit's simulated GPUs: export the model on the CPU after the machine "
        "was closed (its .close())"
    )


def _no_compile(*args, **kwargs):
    raise Absent(
        "torch.compile does not see labkit's simulated GPUs: run the model eagerly, "
        "or close the machine (its .close()) to compile for the CPU"
    )
