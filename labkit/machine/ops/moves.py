"""Making tensors on a device and moving them between devices."""

from __future__ import annotations

from time import perf_counter

import torch
from torch import Tensor
from torch._C import _get_function_stack_at, _len_torch_function_stack
from torch.utils._device import DeviceContext, _device_constructors
from torch.utils.dlpack import DLDeviceType

from ...trace import events as trace
from ..handlers import handles
from ..state.gpu import Gpu
from ..state.placement import gpu_of, put, put_again, put_all
from .mode import stale

_to = Tensor.to
_NOTHING = object()


def move(
    machine, tensor: Tensor, target: Gpu | None, *, dtype=None, copy=False, memory_format=None
) -> Tensor:
    """``tensor`` on ``target`` (None: the host). A copy, unless it is there already and ``copy`` is False."""
    source = gpu_of(tensor)
    options = {} if memory_format is None else {"memory_format": memory_format}
    if source is target:
        result = _to(tensor, dtype=dtype or tensor.dtype, copy=copy, **options)
        if target is not None:
            put(result, target)
        return result
    started = perf_counter() if trace.recording is not None else 0.0
    # Real values never leave the backing device, so without copy=True this would hand back the same storage.
    result = _to(tensor, machine.real(target), dtype or tensor.dtype, copy=True, **options)
    if target is not None:
        put(result, target)
    if trace.recording is not None:
        note_copy(source, target, result, started)
    return result


def note_copy(source: Gpu | None, target: Gpu | None, tensor: Tensor, started: float) -> None:
    """Tell the recordings of a copy between two devices (within one, there is nothing to tell)."""
    if source is not target:
        trace.emit(
            "copy", _name(target), started=started, source=_name(source), shapes=(tuple(tensor.shape),),
            nbytes=tensor.numel() * tensor.element_size(),
        )  # fmt: skip


def _name(gpu: Gpu | None) -> str:
    return "cpu" if gpu is None else str(gpu.device)


@handles(Tensor.to)
def _tensor_to(mode, func, args, kwargs):
    tensor, *rest = args
    options = dict(kwargs)
    # Tensor.to has three signatures: (device, dtype, non_blocking, copy), (dtype, ...) and (other, ...).
    device = options.pop("device", None)
    dtype = options.pop("dtype", None)
    other = options.pop("other", None)
    options.pop("non_blocking", None)
    names = ["dtype", "non_blocking", "copy"]
    if rest and isinstance(rest[0], Tensor):
        other = rest.pop(0)
        names = ["non_blocking", "copy"]
    elif rest and isinstance(rest[0], torch.dtype):
        names = ["dtype", "non_blocking", "copy"]
    elif rest:
        device = rest.pop(0)
    for name, value in zip(names, rest, strict=False):
        if name == "dtype":
            dtype = value
        elif name == "copy":
            options["copy"] = value
    if other is not None:
        target, dtype = gpu_of(other), other.dtype
    elif device is None:
        target = gpu_of(tensor)
    else:
        target = mode.machine.resolve(device)
        if target is None and torch.device(device).type != "cpu":
            return func(*args, **kwargs)
    return move(mode.machine, tensor, target, dtype=dtype, **options)


@handles(Tensor.cuda)
def _tensor_cuda(mode, func, args, kwargs):
    device = args[1] if len(args) > 1 else kwargs.get("device")
    target = mode.machine.resolve("cuda" if device is None else device)
    if target is None:
        raise RuntimeError("Invalid device, must be cuda device")
    return move(mode.machine, args[0], target, memory_format=kwargs.get("memory_format"))


@handles(Tensor.cpu)
def _tensor_cpu(mode, func, args, kwargs):
    memory_format = args[1] if len(args) > 1 else kwargs.get("memory_format")
    return move(mode.machine, args[0], None, memory_format=memory_format)


@handles(Tensor.copy_)
def _copy_(mode, func, args, kwargs):
    """The one operation that may always cross devices."""
    started = perf_counter()
    result = func(*args, **kwargs)
    source = args[1] if len(args) > 1 else kwargs.get("src", kwargs.get("other"))
    ends = gpu_of(args[0]), gpu_of(source)
    for gpu in ends:
        if gpu is not None and gpu.machine is not mode.machine:
            raise stale(gpu)
    if trace.recording is not None:
        note_copy(ends[1], ends[0], source, started)
    return result


@handles(*_device_constructors(), torch.from_numpy, torch.frombuffer, torch.from_file)
def _construct(mode, func, args, kwargs):
    """Functions that make a tensor: on ``device=``, on the default device, or beside their data."""
    machine = mode.machine
    device = kwargs.get("device", _NOTHING)
    data = args[0] if args and isinstance(args[0], Tensor) else None
    if device is _NOTHING or device is None:
        out = kwargs.get("out")
        if isinstance(out, Tensor):
            target = gpu_of(out)
        elif data is not None:
            target = gpu_of(data)
        else:
            target = _default_gpu(machine)
            if target is not None:
                kwargs = {**kwargs, "device": machine.real(target)}
    else:
        target = machine.resolve(device)
        kwargs = {**kwargs, "device": machine.real(target, device)}
    if (
        data is not None
        and gpu_of(data) is not target
        and func in (torch.as_tensor, torch.asarray, torch.tensor)
    ):
        moved = move(machine, data.detach(), target, dtype=kwargs.get("dtype"))
        return moved.requires_grad_(kwargs.get("requires_grad", False))
    pinned = kwargs.get("pin_memory", False)
    if pinned:
        if target is not None:
            raise RuntimeError("Only dense CPU tensors can be pinned")
        kwargs = {**kwargs, "pin_memory": False}
    with machine.random.drawing(func, target, kwargs) as kwargs:
        result = func(*args, **kwargs)
    if target is not None:
        put_all(result, target)
    elif pinned:
        result.untyped_storage()._labkit_pinned = True
    return result


def _default_gpu(machine) -> Gpu | None:
    """The GPU that ``with torch.device(...)`` or ``torch.set_default_device`` chose, if one did."""
    if not _len_torch_function_stack():
        return None
    bottom = _get_function_stack_at(0)
    return machine.resolve(bottom.device) if isinstance(bottom, DeviceContext) else None


@handles(torch.device)
def _make_device(mode, func, args, kwargs):
    index = args[0] if args else kwargs.get("device")
    if isinstance(index, int) and not isinstance(index, bool) and mode.machine.gpus:
        return torch.device("cuda", index)
    return func(*args, **kwargs)


@handles(torch._C._nn._parse_to)
def _parse_to(mode, func, args, kwargs):
    """What ``Module.to`` understands of its arguments: a bare number is a GPU."""
    if args and isinstance(args[0], int) and not isinstance(args[0], bool):
        args = (mode.machine.gpu(args[0]).device, *args[1:])
    return func(*args, **kwargs)


@handles(Tensor.numpy, Tensor.__array__)
def _numpy(mode, func, args, kwargs):
    gpu = gpu_of(args[0])
    forced = kwargs.get("force", False)
    if gpu is not None and not forced:
        raise TypeError(
            f"can't convert {gpu.device} device type tensor to numpy. "
            "Use Tensor.cpu() to copy the tensor to host memory first."
        )
    return func(*args, **kwargs)


@handles(Tensor.apply_, Tensor.map_, Tensor.map2_)
def _python_function(mode, func, args, kwargs):
    if gpu_of(args[0]) is not None:
        raise TypeError(f"{func.__name__} is only implemented on CPU tensors")
    return mode.general(func, args, kwargs)


@handles(Tensor.__dlpack_device__)
def _dlpack_device(mode, func, args, kwargs):
    gpu = gpu_of(args[0])
    return func(*args, **kwargs) if gpu is None else (DLDeviceType.kDLCUDA, gpu.index)


@handles(Tensor.__dlpack__)
def _dlpack(mode, func, args, kwargs):
    gpu = gpu_of(args[0])
    if gpu is not None:
        raise BufferError(
            f"a tensor on {gpu.device} has no memory that others could use: it is simulated by labkit; "
            "use .cpu() to share the values"
        )
    return func(*args, **kwargs)


@handles(Tensor.__cuda_array_interface__.__get__)
def _cuda_array_interface(mode, func, args, kwargs):
    gpu = gpu_of(args[0])
    if gpu is not None:
        raise AttributeError(
            f"a tensor on {gpu.device} has no memory that others could use: it is simulated by labkit"
        )
    return func(*args, **kwargs)


@handles(Tensor.pin_memory)
def _pin_memory(mode, func, args, kwargs):
    gpu = gpu_of(args[0])
    if gpu is not None:
        raise RuntimeError(f"cannot pin '{args[0].type()}' only dense CPU tensors can be pinned")
    if args[0].untyped_storage()._labkit_pinned:
        return args[0]
    pinned = args[0].clone()
    pinned.untyped_storage()._labkit_pinned = True
    return pinned


@handles(Tensor.is_pinned)
def _is_pinned(mode, func, args, kwargs):
    return args[0].untyped_storage()._labkit_pinned


@handles(Tensor.resize_, Tensor.resize_as_)
def _resize(mode, func, args, kwargs):
    result = func(*args, **kwargs)
    put_again(args[0].untyped_storage())
    return result


@handles(torch._C._nn.unflatten_dense_tensors)
def _unflatten(mode, func, args, kwargs):
    # Views of the flat tensor: they are where it is. The other tensors only give their shapes.
    pieces = func(*args, **kwargs)
    gpu = gpu_of(args[0])
    for piece in pieces:
        if not piece.numel() and gpu is not None:
            put(piece, gpu)  # there is nothing to view: it is made anew
    return pieces
