"""Make tensors on a device, draw random numbers there, and move tensors between devices.

A call whose result exceeds its GPU's memory is refused before the computer allocates it.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch._C import _get_function_stack_at, _len_torch_function_stack
from torch.utils._device import DeviceContext, _device_constructors

from labkit.base.tree import tensors_in
from labkit.trace import emitting as trace

from .. import hooks
from ..handlers import functions_in_row, handles
from ..rules.functions import check_alias
from ..rules.same_device import check_generator
from ..state.current_machine import at_work, call_with_machine, machine_in_use
from ..state.gpu import Gpu
from ..state.host import WORTH
from ..state.placement import gpu_of, keep_on_host, name_of, note_leaf, pin, put, put_all
from .gradients import mark_gradient
from .mode import MachineMode

# Functions that copy data already in memory (torch.tensor): their result is no larger.
_OF_DATA = frozenset(functions_in_row("of data"))
# Functions with unwritten memory as result.
_UNWRITTEN = frozenset(functions_in_row("unwritten"))


def refuse_oversized_result(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], gpu: Gpu) -> None:
    """Raise if the result of ``func`` exceeds the memory of ``gpu`` or of the computer, before it is allocated."""
    if func in _OF_DATA or kwargs.get("out") is not None:
        return
    # Skip small results without a call. An upper bound of the elements is the product of all numbers among the
    # arguments; an element has at most 16 bytes.
    most = math.prod(_numbers((*args, *kwargs.values())))
    if 16 * most < WORTH:
        return
    chosen = {"device": "meta", "pin_memory": False} if "pin_memory" in kwargs else {"device": "meta"}
    options = {name: value for name, value in kwargs.items() if name not in ("generator", "requires_grad")}
    try:  # on "meta" nothing is allocated
        size = func(*args, **{**options, **chosen}).untyped_storage().nbytes()
    except (RuntimeError, TypeError, ValueError):
        return  # the real call will raise its own error
    gpu.make_room(size, written=func not in _UNWRITTEN)


def _numbers(values: Iterable[Any]) -> Iterator[float]:
    for value in values:
        kind = value.__class__
        if kind is int or kind is float:
            yield max(1, abs(value))
        elif isinstance(value, Tensor):
            yield max(1, value.numel())
        elif isinstance(value, (tuple, list)):
            yield from _numbers(value)


@handles(*functions_in_row("beside a tensor"))
def _construct_like(mode: MachineMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensor = args[0] if args else kwargs["input"]
    if len(args) == 1 and not kwargs and tensor.__class__ is Tensor and tensor.numel() < WORTH / 16:
        gpu = gpu_of(tensor)  # the usual case: the result is as small as the tensor
        mode.check_own(gpu)
        return put(func(tensor), gpu)
    device = kwargs.get("device")
    gpu = gpu_of(tensor) if device is None else mode.machine.resolve(device)
    if gpu is not None:
        refuse_oversized_result(func, args, kwargs, gpu)
    return mode.general(func, args, kwargs)


# Functions of random numbers, drawn by the GPU's generator.
# Functions with a generator argument (at::Generator? in native_functions.yaml), to get the GPU's own.
_SETTABLE = frozenset(functions_in_row("with a generator"))
_INITIALIZERS = [
    function
    for name, function in inspect.getmembers(torch.nn.init, inspect.isfunction)
    if name.endswith("_") and not name.startswith("_")
]
# Functions without a generator argument, also for some of their parts: the default generator draws.
_OTHERS = [*functions_in_row("from the default generator"), *_INITIALIZERS]


def with_generator(mode: MachineMode, func: Any, gpu: Gpu | None, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the keywords for ``func`` on ``gpu``, with the GPU's generator unless one is given."""
    given = kwargs.get("generator")
    if given is not None:
        check_generator(given, gpu)
    elif gpu is not None and func in _SETTABLE:
        return {**kwargs, "generator": mode.machine.random.generators[gpu.index]}
    return kwargs


# For functions with a new tensor as result, _construct replaces this handler below.
@handles(*_SETTABLE, *_OTHERS)
def _draw(mode: MachineMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    device, tensors = kwargs.get("device"), tensors_in(args, kwargs)
    gpu = mode.machine.resolve(device) if device is not None else gpu_of(tensors[0]) if tensors else None
    kwargs = with_generator(mode, func, gpu, kwargs)
    if gpu is None or func in _SETTABLE:
        return mode.general(func, args, kwargs)
    with mode.machine.random.draw_by_default_generator(gpu):
        return mode.general(func, args, kwargs)


_to: Any = Tensor.to


def move(
    machine: Any, tensor: Tensor, target: Gpu | None, *, dtype: torch.dtype | None = None, copy: bool = False,
    memory_format: torch.memory_format | None = None, non_blocking: bool = False,
) -> Tensor:  # fmt: skip
    """Return ``tensor`` on ``target`` (None: the host): a copy, unless it is there already and ``copy`` is False."""
    source = gpu_of(tensor)
    _wait(machine, source, target, non_blocking)
    options = {} if memory_format is None else {"memory_format": memory_format}
    started = trace.clock.now() if trace.recording is not None else 0.0
    # All values are on the CPU, so between two devices only copy=True makes another storage.
    stays = source is target and not tensor.is_meta
    place, copy = (() if stays else (torch.device("cpu"),)), copy or source is not target
    if target is not None and copy and tensor.layout is torch.strided:
        target.make_room(tensor.numel() * (dtype or tensor.dtype).itemsize)
    # whole: on the way to the host, a DTensor's local tensor goes there too.
    with at_work(target, whole=target is None):
        moved: Tensor = _to(tensor, *place, dtype or tensor.dtype, copy=copy, **options)
    if target is not None:
        put(moved, target)
    elif source is not None and tensor.layout is torch.strided:
        keep_on_host(moved)
    if target is None and non_blocking and source is not None and tensor.layout is torch.strided:
        pin(moved)  # torch copies to pinned memory then (TensorConversions.cpp, _to_copy)
    if source is not target and moved.requires_grad and moved.grad_fn is not None:
        moved.grad_fn.register_hook(functools.partial(_copy_gradient_back, source, target))
    if trace.recording is not None:
        note_copy(source, target, moved, started)
    return moved


def _wait(machine: Any, source: Gpu | None, target: Gpu | None, non_blocking: bool) -> None:
    """Let the host wait for a copy from or to a GPU (``aten/src/ATen/native/cuda/Copy.cu``, ``copy_kernel_cuda``)."""
    if (source is None) is not (target is None) and not (non_blocking and source is None):
        for tell in hooks.device_waited if non_blocking else hooks.host_waited:
            tell(machine)


def _copy_gradient_back(
    source: Gpu | None, target: Gpu | None, grads: tuple[Any, ...], _: Any
) -> tuple[Any, ...] | None:
    """Copy the gradient of a copy back: on the CPU, C++ passes the same tensor on."""
    if machine_in_use() is None:
        return None
    device: Any = "cpu" if source is None else source.device
    marked = (mark_gradient(grad, target) for grad in grads)
    # A recording shows this copy as part of backward.
    with trace.set_place(replace(trace.place(), verb="backward")):
        return tuple(None if grad is None else call_with_machine(grad.to, device) for grad in marked)


def note_copy(source: Gpu | None, target: Gpu | None, tensor: Tensor, started: float) -> None:
    """Record a copy between two different devices."""
    if source is not target:
        trace.emit(
            "copy", name_of(target), started=started, source=name_of(source), shapes=(tuple(tensor.shape),),
            nbytes=tensor.numel() * tensor.element_size(),
        )  # fmt: skip


@handles(Tensor.to)
def _tensor_to(mode: MachineMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    tensor, *rest = args
    # Three signatures (torch/csrc/autograd/utils/python_arg_parsing.h, parse_to_conversion):
    # (device, dtype, non_blocking, copy), (dtype, non_blocking, copy) and (other, non_blocking, copy).
    first = "device"
    if rest and isinstance(rest[0], Tensor):
        first = "other"
    elif rest and isinstance(rest[0], torch.dtype):
        first = "dtype"
    names = [first, *(["dtype"] if first == "device" else []), "non_blocking", "copy"]
    options = dict(zip(names, rest, strict=False)) | kwargs
    device, other = options.pop("device", None), options.pop("other", None)
    if other is not None:
        target, options["dtype"], device = gpu_of(other), other.dtype, other.device
    elif device is None:
        target, device = gpu_of(tensor), tensor.device
    else:
        target = mode.machine.resolve(device)
    if target is None and torch.device(device).type != "cpu":
        return func(*args, **kwargs)  # to meta, or a change of dtype there
    return move(mode.machine, tensor, target, **options)


# Operators to move a tensor, called by dispatch modes and exported graphs.
OPERATORS_THAT_MOVE = (
    torch.ops.aten.to.device, torch.ops.aten.to.dtype_layout, torch.ops.aten.to.other,
    torch.ops.aten.type_as.default, torch.ops.aten.to, torch.ops.aten.type_as, torch.ops.prims.device_put,
    torch.ops.prims.device_put.default,
)  # fmt: skip


@handles(*OPERATORS_THAT_MOVE[:4])
def _move_by_operator(mode: MachineMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """Move a tensor by an overload, whose schema gives the order of its options."""
    names = [argument.name for argument in func._schema.arguments]
    options = dict(zip(names, args, strict=False)) | kwargs
    options.pop("pin_memory", None)
    tensor, layout = options.pop("self"), options.pop("layout", None)
    if layout is not None and layout is not tensor.layout:
        return func(*args, **kwargs)  # raises an error
    return _tensor_to(mode, _to, (tensor,), options)


@handles(*OPERATORS_THAT_MOVE[4:])
def _move_as_method(mode: MachineMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    if len(args) > 2 and isinstance(args[2], bool):  # prims.device_put has no dtype
        args = (*args[:2], None, args[2])
    return _tensor_to(mode, _to, args, kwargs)


@handles(Tensor.type_as)
def _type_as(mode: MachineMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    # Tensor.to(other) without its options (aten/src/ATen/native/TypeProperties.cpp).
    return _tensor_to(mode, _to, (args[0], args[1] if len(args) > 1 else kwargs["other"]), {})


@handles(Tensor.cuda)
def _tensor_cuda(mode: MachineMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    device = args[1] if len(args) > 1 else kwargs.get("device")
    target = mode.machine.resolve("cuda" if device is None else device)
    if target is None:
        raise RuntimeError("Invalid device, must be cuda device")
    waits_not = args[2] if len(args) > 2 else kwargs.get("non_blocking", False)
    layout = kwargs.get("memory_format")
    return move(mode.machine, args[0], target, memory_format=layout, non_blocking=waits_not)


@handles(Tensor.cpu)
def _tensor_cpu(mode: MachineMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    return move(mode.machine, args[0], None, memory_format=kwargs.get("memory_format"))


@handles(Tensor.copy_)
def _copy_(mode: MachineMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """Copy between any two devices, as no other operator may (``aten/src/ATen/native/Copy.cpp``, ``copy_impl``)."""
    source = args[1] if len(args) > 1 else kwargs.get("src", kwargs.get("other"))
    target = gpu_of(args[0])
    # The source can be a number.
    ends = [target, gpu_of(source) if isinstance(source, Tensor) else target]
    for gpu in ends:
        mode.check_own(gpu)
    _wait(mode.machine, ends[1], target, args[2] if len(args) > 2 else kwargs.get("non_blocking", False))
    started = trace.clock.now() if trace.recording is not None else 0.0
    result: Tensor = func(*args, **kwargs)
    if target is not None and result.layout is not torch.strided:
        # The tensor has new indices and values (aten/src/ATen/native/sparse, copy_sparse_to_sparse_).
        put(result, target)
    if trace.recording is not None and isinstance(source, Tensor):
        note_copy(ends[1], target, source, started)
    return result


@handles(*_device_constructors(), torch.from_numpy, torch.frombuffer, torch.from_file)
def _construct(mode: MachineMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Make a tensor on ``device=``, on the default device, or on the data's device."""
    machine = mode.machine
    if func is torch.randperm and not (args[0] if args else kwargs.get("n", 1)):
        kwargs = {**kwargs, "generator": None}  # draws nothing, so any generator will do (Randperm.cu)
    device = kwargs.get("device")
    data = args[0] if args and isinstance(args[0], Tensor) else None
    if device is not None:
        target = machine.resolve(device)
        kwargs = {**kwargs, "device": machine.real(target, device)}
    elif isinstance(kwargs.get("out"), Tensor):
        target = gpu_of(kwargs["out"])
    elif data is not None:
        target = gpu_of(data)
    else:
        target = default_gpu(machine)
        if target is not None:
            kwargs = {**kwargs, "device": machine.real(target)}
    started = trace.clock.now() if trace.recording is not None else 0.0
    source = target if data is None else gpu_of(data)
    if data is not None and source is not target and func in (torch.as_tensor, torch.asarray):
        # Both call .to(), with its gradient (torch/csrc/utils/tensor_new.cpp). The rest needs no device.
        check_alias(data, target, kwargs.get("copy"))
        data = move(machine, data, target, dtype=kwargs.get("dtype"))
        args, kwargs = (data, *args[1:]), {k: v for k, v in kwargs.items() if k not in ("copy", "device")}
    elif func in (torch.tensor, torch.as_tensor, torch.asarray):
        _wait(machine, None if data is None else source, target, False)  # built on the host, then copied
    if target is not None:
        refuse_oversized_result(func, args, kwargs, target)
    # C++ makes a tensor of plain data on the target; tensors in the data, alone or in lists, stay where they are.
    fresh = not tensors_in(args, kwargs)
    with at_work(target if fresh or data is not None else None, whole=fresh):
        kwargs = with_generator(mode, func, target, kwargs)
        result = func(*args, **kwargs)
    put_all(result, target)
    if kwargs.get("requires_grad"):
        note_leaf(result)
    if func is torch.tensor and trace.recording is not None:
        note_copy(source, target, result, started)
    return result


@handles(Tensor.new_tensor)
def _new_tensor(mode: MachineMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """Make a tensor on ``device``, or else on that of ``args[0]``, wherever the data are."""
    tensor, *rest = args
    data, device = rest[0] if rest else kwargs.get("data"), kwargs.get("device")
    target = gpu_of(tensor) if device is None else mode.machine.resolve(device)
    mode.check_own(gpu_of(tensor))
    if isinstance(data, Tensor):
        mode.check_own(gpu_of(data))
    if device is not None:
        kwargs = {**kwargs, "device": mode.machine.real(target, device)}
    made: Tensor = put(func(*args, **kwargs), target)
    note_leaf(made)
    return made


def default_gpu(machine: Any) -> Gpu | None:
    """Return the GPU chosen by ``with torch.device(...)`` or ``torch.set_default_device``; None without one."""
    if not _len_torch_function_stack():
        return None
    bottom = _get_function_stack_at(0)
    return machine.resolve(bottom.device) if isinstance(bottom, DeviceContext) else None


@handles(torch.device)
def _make_device(mode: MachineMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    index = args[0] if args else kwargs.get("device")
    if isinstance(index, int) and not isinstance(index, bool) and mode.machine.gpus:
        return torch.device("cuda", index)
    return func(*args, **kwargs)


@handles(torch._C._nn._parse_to)
def _parse_to(mode: MachineMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Parse the arguments of ``Module.to``: a number is a GPU, a tensor tells its device."""
    first = args[0] if args else kwargs.get("tensor", kwargs.get("device"))
    if isinstance(first, int) and not isinstance(first, bool):
        device = mode.machine.gpu(first).device
        args, kwargs = ((device, *args[1:]), kwargs) if args else (args, {**kwargs, "device": device})
    parsed = func(*args, **kwargs)
    gpu = gpu_of(first) if isinstance(first, Tensor) else None
    return parsed if gpu is None else (gpu.device, *parsed[1:])
