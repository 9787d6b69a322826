"""DLPack on simulated GPUs: a capsule says CUDA, so that nobody takes its memory for the host's.

Between torch and torch it works as on the real machine, sharing memory; a library for the CPU refuses it as it
refuses a GPU's. The device stands at a fixed place in the structure that a capsule holds (dlpack.h, DLManagedTensor
and DLManagedTensorVersioned, whose layout never changes).
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor
from torch.utils.dlpack import DLDeviceType

from ..handlers import handles
from ..state.gpu import TheMachine
from ..state.in_use import replaces, seeing
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


@replaces(torch._C, "_to_dlpack", "_to_dlpack_versioned")
@replaces(torch.utils.dlpack, "to_dlpack")
@replaces(torch, "to_dlpack")
def _export(machine: TheMachine, real: Any, data: Any, *, dl_device: Any = None, copy: Any = None) -> Any:
    """The functions that make capsules."""
    if not isinstance(data, Tensor):
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
        _device_in(capsule)[:] = _CUDA, there.index
    return capsule


@replaces(torch._C, "_from_dlpack")
def _take(machine: TheMachine, real: Any, capsule: Any) -> Any:
    """The function that takes them."""
    device = _device_in(capsule)
    if device is None or device[0] != _CUDA:
        return real(capsule)
    gpu = machine.gpu(device[1])
    device[:] = torch._C._torchDeviceToDLDevice(machine.backing)
    tensor = real(capsule)
    put_wrapper(tensor, gpu)  # the memory is that of the tensor that was exported
    return tensor
