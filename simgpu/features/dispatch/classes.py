"""Python that C++ calls in the middle of an operation is on the machine too.

While an operation runs, the machine's mode is off: C++ took it off the stack to call it. What Python's dispatch
reaches from there (``__torch_dispatch__`` of tensor subclasses and of modes, torch/csrc/utils/python_arg_parser.cpp,
dispatch_on_subclass and dispatch_on_mode) is therefore wrapped: it gets the mode back, devices that it can believe,
and tensors that are where the call is at work. Ordinary calls pay nothing, for no Python is called in them.

The hooks of ``saved_tensors_hooks``, on which checkpointing is built, are called so, too (torch/csrc/autograd/
saved_variable.cpp, set_hooks_and_pack_data). What an operation saves of its own result carries no mark yet, for the
machine's mode marks it when the call has come back. Unpacking comes from the engine, during backward and maybe on
another thread.
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
from ...stack import hands_on, others_dispatch, with_mode
from ...state.current_machine import at_work, call_with_machine, machine_in_use, replaces, work
from ...state.gpu import TheMachine
from ...state.placement import gpu_of, keep_on_host, put, put_wrapper

_FAKE, _current = torch._C._TorchDispatchModeKey.FAKE, torch._C._get_dispatch_mode


class NoteHome(TorchFunctionMode):
    """Notes where each operation is at work, for Python below it that must know."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if types and types[0] is not Tensor and hands_on():
            return NotImplemented
        kwargs = kwargs or {}
        # The user's modes, which may be below this one, are not to see it.
        with torch._C.DisableTorchFunction():
            tensors = tensors_in(args, kwargs)
            gpus = list(map(gpu_of, tensors))
            gpu = next((gpu for gpu in gpus if gpu is not None), None)
            for tensor, at in zip(tensors, gpus, strict=True):
                if at is not gpu and at is None:  # or saved, it would be taken for a result of the call
                    keep_on_host(tensor)
        with at_work(gpu, whole=all(at is gpu for at in gpus)):
            return func(*args, **kwargs)


def on_machine(machine: TheMachine, run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call ``run``, Python to which C++ came in the middle of an operation; its results stay where it puts them."""
    home = work.gpu
    # There may be another dispatch mode below the one that is called.
    noting = NoteHome() if others_dispatch() else nullcontext()
    with at_work(None), machine.use_in_thread(), noting:
        result = run(*args, **kwargs)
    if home is not None:  # or the machine's mode would place it there
        for tensor in tensors_in(result):
            keep_on_host(tensor)
    return result


@replaces(torch._C._autograd, "_push_saved_tensors_default_hooks")
def _push(
    _: TheMachine, real: Any, pack_hook: Callable[[Any], Any], unpack_hook: Callable[[Any], Any]
) -> None:
    """The hooks see the devices of the tensors that are packed and unpacked."""

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


# Modes of torch's compilation, which is refused, and of labkit's own (ops/mixed, the check-up's draws) work with the
# devices that C++ knows.
_LEFT_ALONE = (
    "torch._subclasses.fake_tensor.",
    "torch._subclasses.functional_tensor.",
    "torch.fx.",
    "torch._functorch.",
    "torch._higher_order_ops.",
    *(f"{package}." for package in ours.PACKAGES),
)

# The attribute of a __torch_dispatch__ that is ours.
_WRAPPED = "_labkit_wrapped"
# These may follow the class and the size in a call of Tensor._make_wrapper_subclass.
_OPTIONS = (
    "strides", "storage_offset", "memory_format", "dtype", "layout", "device", "pin_memory", "requires_grad",
    "dispatch_sizes_strides_policy", "dispatch_device", "dispatch_layout", "_extra_dispatch_keys", "storage_size",
)  # fmt: skip


def _bring(machine: TheMachine, func: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """The arguments of an operator as the real machine would hand them to Python."""
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
    # Fake tensors are made after the user's modes, for the device that is named here.
    if home is None or _current(_FAKE) is not None:
        return args, kwargs
    device = home.device

    def named(value: Any) -> Any:
        is_cpu = value.__class__ is torch.device and value.type == "cpu"
        return device if is_cpu else value

    return tuple(map(named, args)), {name: named(value) for name, value in kwargs.items()}


def _dispatching(raw: Any) -> Any:
    """The ``__torch_dispatch__`` that stands for ``raw``, of a class of tensors or of modes."""
    function = raw.__func__ if isinstance(raw, (classmethod, staticmethod)) else raw
    first = 0 if isinstance(raw, staticmethod) else 1

    @functools.wraps(function)
    def dispatch(*given: Any, **more: Any) -> Any:
        machine = machine_in_use()
        if machine is None or more or len(given) < first + 3:  # called by Python, by its own words
            return function(*given, **more)
        func, types, args, kwargs = (*given[first:], None)[:4]
        args, kwargs = _bring(machine, func, args, kwargs or {})
        return on_machine(machine, function, *given[:first], func, types, args, kwargs)

    dispatch.__dict__[_WRAPPED] = True
    return raw.__class__(dispatch) if first == 0 or isinstance(raw, classmethod) else dispatch


def _own_dispatch(kind: type) -> Any:
    """The ``__torch_dispatch__`` of ``kind`` itself, if it has one that must see the machine; else None."""
    raw = vars(kind).get("__torch_dispatch__")
    function = getattr(raw, "__func__", raw)
    known = raw is None or raw is torch._C._disabled_torch_dispatch_impl or hasattr(function, _WRAPPED)
    return None if known or f"{kind.__module__}.".startswith(_LEFT_ALONE) else raw


def _classes(base: Any) -> Iterator[type]:
    for kind in base.__subclasses__():
        yield kind
        yield from _classes(kind)


@hooks.patches.add
def patches(machine: TheMachine) -> Iterator[Patch]:
    """Classes that dispatch, those that there are and those to come."""
    for base in (Tensor, TorchDispatchMode):
        for kind in dict.fromkeys(_classes(base)):
            raw = _own_dispatch(kind)
            if raw is not None:
                yield Patch(kind, "__torch_dispatch__", _dispatching(raw))
        yield Patch(base, "__init_subclass__", _watching(base))
    yield from with_mode(TorchDispatchMode, _noting)


def _noting(mode: TorchDispatchMode) -> NoteHome | None:
    return None if f"{type(mode).__module__}.".startswith(_LEFT_ALONE) else NoteHome()


def _watching(base: Any) -> Any:
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
            cls.__torch_dispatch__ = _dispatching(raw)

    return classmethod(init_subclass)


@handles(Tensor.__reduce_ex__)
def _reduce(mode: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A wrapper is saved as a call that makes it anew, on its device (torch/_tensor.py, _reduce_ex_internal)."""
    found, gpu = func(*args, **kwargs), gpu_of(args[0])
    if gpu is None or found[1][0] is not torch._utils._rebuild_wrapper_subclass:
        return found
    rebuild, (make, kind, options, *state) = found
    there = tuple(gpu.device if isinstance(option, torch.device) else option for option in options)
    return rebuild, (make, kind, there, *state)


@replaces(Tensor, "_make_wrapper_subclass")
def _make_wrapper(machine: TheMachine, real: Any, cls: type, size: Any, *args: Any, **kwargs: Any) -> Any:
    """A wrapper is on the GPU that it was made for, and takes no room there: its inner tensors do."""
    options = dict(zip(_OPTIONS, args, strict=False)) | kwargs
    device = options.get("device")
    gpu = None if device is None else machine.resolve(device)
    if gpu is None:
        return real(cls, size, *args, **kwargs)
    # With dispatch_device, C++ would ask the wrapper for its device, and get a GPU that is not there.
    wrapper = real(cls, size, **options | {"device": "cpu", "dispatch_device": False})
    put_wrapper(wrapper, gpu)
    return wrapper
