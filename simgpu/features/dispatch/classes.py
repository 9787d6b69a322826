"""Show the machine to Python that C++ calls in the middle of an operation.

While an operation runs, the machine's mode is off: C++ took it off the stack to call it. So each ``__torch_dispatch__``
of tensor subclasses and modes is wrapped (torch/csrc/utils/python_arg_parser.cpp, dispatch_on_subclass and
dispatch_on_mode): it runs with the mode on, with simulated devices as arguments, and with tensors marked as on the GPU
of the call. Ordinary calls pay nothing.

C++ also calls the hooks of ``saved_tensors_hooks``, on which checkpointing is built (torch/csrc/autograd/
saved_variable.cpp, set_hooks_and_pack_data). A saved result of the running operation has no mark yet, for the machine's
mode marks it after the call. Unpacking is called by the engine, during backward, possibly on another thread.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from labkit.base import ours
from labkit.base.patches import Patch
from labkit.base.tree import tensors_in

from ... import hooks
from ...handlers import handles
from ...rules.operators import on_one_device
from ...stack import fake_mode, hands_on, others_dispatch, with_mode
from ...state.current_machine import at_work, call_with_machine, machine_in_use, replaces, work
from ...state.gpu import TheMachine
from ...state.placement import gpu_of, keep_on_host, put, put_wrapper


class NoteHome(TorchFunctionMode):
    """Function mode that notes the GPU of each operation, for Python called in the middle of it."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if types and types[0] is not Tensor and hands_on():
            return NotImplemented
        kwargs = kwargs or {}
        # Hide these calls from the user's modes, which may be below this mode.
        with torch._C.DisableTorchFunction():
            tensors = tensors_in(args, kwargs)
            gpus = list(map(gpu_of, tensors))
            gpu = next((gpu for gpu in gpus if gpu is not None), None)
            for tensor, at in zip(tensors, gpus, strict=True):
                if at is not gpu and at is None:  # when saved, it must not be taken for a result of the call
                    keep_on_host(tensor)
        with at_work(gpu, whole=all(at is gpu for at in gpus)):
            return func(*args, **kwargs)


def on_machine(machine: TheMachine, run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call ``run``, which C++ called in the middle of an operation, and keep its results on their devices."""
    home = work.gpu
    # Another dispatch mode may be below the present one.
    noting = NoteHome() if others_dispatch() else nullcontext()
    with at_work(None), machine.use_in_thread(), noting:
        result = run(*args, **kwargs)
    if home is not None:  # or the machine's mode would place the results there
        for tensor in tensors_in(result):
            keep_on_host(tensor)
    return result


@replaces(torch._C._autograd, "_push_saved_tensors_default_hooks")
def _push(
    _: TheMachine, real: Any, pack_hook: Callable[[Any], Any], unpack_hook: Callable[[Any], Any]
) -> None:
    """Show the hooks the devices of packed and unpacked tensors."""

    @functools.wraps(pack_hook, updated=())
    def pack(tensor: Tensor) -> Any:
        if work.gpu is not None and isinstance(tensor, Tensor):
            put(tensor, work.gpu)
        return call_with_machine(pack_hook, tensor)

    @functools.wraps(unpack_hook, updated=())
    def unpack(packed: Any) -> Any:
        return call_with_machine(unpack_hook, packed)

    real(pack, unpack)


hooks.patches.add(lambda _: with_mode(saved_tensors_hooks, lambda _: NoteHome()))


# Modes of torch's compilation and labkit's own modes (ops/mixed, the check-up's draws) expect C++'s devices.
_LEFT_ALONE = (
    "torch._subclasses.fake_tensor.",
    "torch._subclasses.functional_tensor.",
    "torch.fx.",
    "torch._functorch.",
    "torch._higher_order_ops.",
    *(f"{package}." for package in ours.PACKAGES),
)

# The attribute of a wrapped __torch_dispatch__.
_WRAPPED = "_labkit_wrapped"
# The arguments of Tensor._make_wrapper_subclass after the class and the size.
_OPTIONS = (
    "strides", "storage_offset", "memory_format", "dtype", "layout", "device", "pin_memory", "requires_grad",
    "dispatch_sizes_strides_policy", "dispatch_device", "dispatch_layout", "_extra_dispatch_keys", "storage_size",
)  # fmt: skip


def _simulate_arguments(machine: TheMachine, func: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Return the arguments of an operator as the real machine would pass them to Python."""
    tensors = tensors_in(args, kwargs)
    gpus = set(map(gpu_of, tensors))
    home = work.gpu
    if work.engine:
        there = gpus - {None}
        home = there.pop() if len(there) == 1 else None
        if home is not None:
            work.last = home
            if None in gpus:
                for tensor in on_one_device(func, tensors):
                    put(tensor, home)
        elif not tensors:
            home = work.last
    elif home is not None and work.whole and None in gpus:
        for tensor in tensors:
            put(tensor, home)
    # FakeTensorMode comes after the user's modes and takes the device from here.
    if home is None or fake_mode() is not None:
        return args, kwargs
    device = home.device

    def replace_cpu(value: Any) -> Any:
        is_cpu = value.__class__ is torch.device and value.type == "cpu"
        return device if is_cpu else value

    return tuple(map(replace_cpu, args)), {name: replace_cpu(value) for name, value in kwargs.items()}


def _wrap_dispatch(raw: Any) -> Any:
    """Return the replacement of ``raw``, the ``__torch_dispatch__`` of a class of tensors or modes."""
    function = raw.__func__ if isinstance(raw, (classmethod, staticmethod)) else raw
    first = 0 if isinstance(raw, staticmethod) else 1

    @functools.wraps(function)
    def dispatch(*given: Any, **more: Any) -> Any:
        machine = machine_in_use()
        if machine is None or more or len(given) < first + 3:  # called by Python itself
            return function(*given, **more)
        func, types, args, kwargs = (*given[first:], None)[:4]
        args, kwargs = _simulate_arguments(machine, func, args, kwargs or {})
        return on_machine(machine, function, *given[:first], func, types, args, kwargs)

    dispatch.__dict__[_WRAPPED] = True
    return raw.__class__(dispatch) if first == 0 or isinstance(raw, classmethod) else dispatch


def _own_dispatch(kind: type) -> Any:
    """Return the ``__torch_dispatch__`` defined by ``kind`` if the machine must wrap it; else None."""
    raw = vars(kind).get("__torch_dispatch__")
    function = getattr(raw, "__func__", raw)
    skipped = raw is None or raw is torch._C._disabled_torch_dispatch_impl or hasattr(function, _WRAPPED)
    return None if skipped or f"{kind.__module__}.".startswith(_LEFT_ALONE) else raw


def _classes(base: Any) -> Iterator[type]:
    for kind in base.__subclasses__():
        yield kind
        yield from _classes(kind)


@hooks.patches.add
def patches(machine: TheMachine) -> Iterator[Patch]:
    """Wrap the ``__torch_dispatch__`` of present and future classes."""
    for base in (Tensor, TorchDispatchMode):
        for kind in dict.fromkeys(_classes(base)):
            raw = _own_dispatch(kind)
            if raw is not None:
                yield Patch(kind, "__torch_dispatch__", _wrap_dispatch(raw))
        yield Patch(base, "__init_subclass__", _wrap_future_classes(base))
    yield from with_mode(TorchDispatchMode, _note_home_for)


def _note_home_for(mode: TorchDispatchMode) -> NoteHome | None:
    return None if f"{type(mode).__module__}.".startswith(_LEFT_ALONE) else NoteHome()


def _wrap_future_classes(base: Any) -> Any:
    before = vars(base).get("__init_subclass__")

    def init_subclass(cls: Any, /, **options: Any) -> None:
        if before is None:
            super(base, cls).__init_subclass__(**options)
        else:
            before.__func__(cls, **options)
        if machine_in_use() is None:
            return
        for look in hooks.class_made:
            look(cls)
        raw = _own_dispatch(cls)
        if raw is not None:
            cls.__torch_dispatch__ = _wrap_dispatch(raw)

    return classmethod(init_subclass)


@handles(Tensor.__reduce_ex__)
def _reduce(mode: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Pickle a wrapper with the simulated device (torch/_tensor.py, _reduce_ex_internal)."""
    found, gpu = func(*args, **kwargs), gpu_of(args[0])
    if gpu is None or found[1][0] is not torch._utils._rebuild_wrapper_subclass:
        return found
    rebuild, (make, kind, options, *state) = found
    there = tuple(gpu.device if isinstance(option, torch.device) else option for option in options)
    return rebuild, (make, kind, there, *state)


@replaces(Tensor, "_make_wrapper_subclass")
def _make_wrapper(machine: TheMachine, real: Any, cls: type, size: Any, *args: Any, **kwargs: Any) -> Any:
    """Make a wrapper on its GPU, where only inner tensors take memory."""
    options = dict(zip(_OPTIONS, args, strict=False)) | kwargs
    device = options.get("device")
    gpu = None if device is None else machine.resolve(device)
    if gpu is None:
        return real(cls, size, *args, **kwargs)
    # With dispatch_device, C++ would read the wrapper's device, and not find the GPU.
    wrapper = real(cls, size, **options | {"device": "cpu", "dispatch_device": False})
    put_wrapper(wrapper, gpu)
    return wrapper
