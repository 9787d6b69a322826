"""DLPack on simulated GPUs: a capsule says CUDA, so that nobody takes its memory for the host's.

Between torch and torch it works as on the real machine, sharing memory; a library for the CPU refuses it as it
refuses a GPU's. The device stands at a fixed place in the structure that a capsule holds (dlpack.h, DLManagedTensor
and DLManagedTensorVersioned, whose layout never changes).
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.dlpack import DLDeviceType

from ...base.patches import Patch
from .. import hooks
from ..handlers import handles
from ..state.gpu import Gpu, TheMachine
from ..state.in_use import machine_in_use, seeing
from ..state.placement import gpu_of, name_of, put_wrapper

_CUDA = int(DLDeviceType.kDLCUDA)
# The name of a capsule that nobody has taken yet -> where in its structure the device is: two int32, kind and number.
_DEVICE_AT = {b"dltensor": 8, b"dltensor_versioned": 40}

_name, _pointer = ctypes.pythonapi.PyCapsule_GetName, ctypes.pythonapi.PyCapsule_GetPointer
_name.argtypes, _name.restype = [ctypes.py_object], ctypes.c_char_p
_pointer.argtypes, _pointer.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_void_p


def _device_in(capsule: Any) -> Any:
    """The two numbers in ``capsule`` that say its device, to read and to write; None if it is none, or was taken."""
    if type(capsule).__name__ != "PyCapsule":
        return None
    name = _name(capsule)
    if name not in _DEVICE_AT:
        return None
    return (ctypes.c_int32 * 2).from_address(_pointer(capsule, name) + _DEVICE_AT[name])


@handles(Tensor.__dlpack_device__)
def _dlpack_device(mode: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    gpu = gpu_of(args[0])
    if gpu is not None:
        return DLDeviceType.kDLCUDA, gpu.index
    if args[0].is_cpu and args[0].layout is torch.strided and args[0].untyped_storage()._labkit_pinned:
        return DLDeviceType.kDLCUDAHost, 0
    return func(*args, **kwargs)


@handles(Tensor.__dlpack__)
def _dlpack(mode: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensor: Tensor = args[0]
    gpu, stream = gpu_of(tensor), kwargs.get("stream", -1)
    # torch's own code asks for devices with the mode off, so what it says of a GPU is said here (torch/_tensor.py).
    if gpu is None or tensor.requires_grad or tensor.is_conj() or tensor.layout is not torch.strided:
        return func(*args, **kwargs)
    current = mode.machine.current.index
    if gpu.index != current:
        raise BufferError(
            f"Can't export tensors on a different CUDA device index. Expected: {gpu.index}. "
            f"Current device: {current}."
        )
    if stream is not None and type(stream) is not int:
        raise TypeError("stream must be ``int`` or ``none``")
    if stream == 2:
        raise BufferError("per-thread default stream is not supported.")
    if stream == 0:
        raise AssertionError("unsupported stream on CUDA: 0.")
    # Everything ran when it was called: there is nothing to wait for.
    return func(*args, **kwargs | {"stream": -1})


@hooks.patches.add
def patches(machine: TheMachine) -> Iterator[Patch]:
    """The functions that make capsules, and the one that takes them."""
    exporters = {name: getattr(torch._C, name) for name in ("_to_dlpack", "_to_dlpack_versioned")}
    for name, real in exporters.items():
        yield Patch(torch._C, name, _exporting(real))
    yield Patch(torch.utils.dlpack, "to_dlpack", _exporting(exporters["_to_dlpack"]))
    yield Patch(torch, "to_dlpack", _exporting(exporters["_to_dlpack"]))
    yield Patch(torch._C, "_from_dlpack", _importing(torch._C._from_dlpack))


def _exporting(real: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(real)
    def export(data: Tensor, *, dl_device: Any = None, copy: bool | None = None) -> Any:
        machine = machine_in_use()
        if machine is None or not isinstance(data, Tensor):
            return real(data, dl_device=dl_device, copy=copy)
        here = there = gpu_of(data)
        if dl_device is not None:
            kind, index = map(int, dl_device)
            there = machine.gpu(index) if kind == _CUDA else None
            if there is None and kind != DLDeviceType.kDLCPU:
                return real(data, dl_device=dl_device, copy=copy)
        if there is not here:
            # aten/src/ATen/DLConvertor.cpp, maybeCopyTensor
            if copy is False:
                raise ValueError(
                    f"cannot move (i.e. copy=False) tensor from {name_of(here)} to {name_of(there)} without copying."
                )
            data, copy = seeing(data.to, "cpu" if there is None else there.device), None
        capsule = real(data, copy=copy)
        if there is not None:
            _say(capsule, _CUDA, there)
        return capsule

    return export


def _say(capsule: Any, kind: int, gpu: Gpu) -> None:
    device = _device_in(capsule)
    device[0], device[1] = kind, gpu.index


def _importing(real: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(real)
    def take(capsule: Any) -> Tensor:
        machine, device = machine_in_use(), _device_in(capsule)
        if machine is None or device is None or device[0] != _CUDA:
            taken: Tensor = real(capsule)
            return taken
        gpu, backing = machine.gpu(device[1]), machine.backing
        device[0], device[1] = torch._C._torchDeviceToDLDevice(backing)
        tensor: Tensor = real(capsule)
        put_wrapper(tensor, gpu)  # the memory is that of the tensor that was exported
        return tensor

    return take
