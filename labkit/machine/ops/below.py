"""Python that C++ calls in the middle of an operation is on the machine too.

While an operation runs, the machine's mode is off: C++ took it off the stack to call it. What Python's dispatch
reaches from there (``__torch_dispatch__`` of tensor subclasses and of modes, torch/csrc/utils/python_arg_parser.cpp,
dispatch_on_subclass and dispatch_on_mode) is therefore wrapped: it gets the mode back, devices that it can believe,
and tensors that are where the call is at work. Ordinary calls pay nothing, for no Python is called in them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._C import _is_torch_function_enabled, _len_torch_dispatch_stack
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from ...base import ours
from ...base.patches import Patch
from ...base.tree import tensors_in
from ..features.dtensors.wrappers import class_made
from ..handlers import handles
from ..rules.operators import on_one_device
from ..stack import leave as take_off
from ..state.gpu import Gpu
from ..state.in_use import machine_in_use
from ..state.placement import gpu_of, keep_on_host, put, put_wrapper
from ..state.work import at_work, work

if TYPE_CHECKING:
    from ..machine import Machine

# torch's own machinery of compilation, which is refused, and labkit's (.mixed, the check-up's draws): they want what
# C++ has.
_LEFT_ALONE = (
    "torch._subclasses.fake_tensor.",
    "torch._subclasses.functional_tensor.",
    "torch.fx.",
    "torch._functorch.",
    "torch._higher_order_ops.",
    f"{ours.PACKAGE}.",
)

# The attribute of a __torch_dispatch__ that is ours.
_WRAPPED = "_labkit_wrapped"
# What may follow the class and the size in a call of Tensor._make_wrapper_subclass.
_OPTIONS = (
    "strides", "storage_offset", "memory_format", "dtype", "layout", "device", "pin_memory", "requires_grad",
    "dispatch_sizes_strides_policy", "dispatch_device", "dispatch_layout", "_extra_dispatch_keys", "storage_size",
)  # fmt: skip


# Whether a function mode that is given types of subclasses hands the call on to these (see mode.py): not within
# DisableTorchFunctionSubclass, which a subclass's own code puts around what is to be a tensor's.
hands_on = _is_torch_function_enabled


class NoteHome(TorchFunctionMode):
    """Notes where each operation is at work, for Python below it that must know."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if types and types[0] is not Tensor and hands_on():
            return NotImplemented
        kwargs = kwargs or {}
        with (
            torch._C.DisableTorchFunction()
        ):  # the user's modes, which may be below this one, are not to see it
            gpus = list(map(gpu_of, tensors_in(args, kwargs)))
        gpu = next((gpu for gpu in gpus if gpu is not None), None)
        with at_work(gpu, whole=all(at is gpu for at in gpus)):
            return func(*args, **kwargs)


def on_machine(machine: Machine, run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call ``run``, Python that C++ came to in the middle of an operation: what it returns is where it says."""
    home = work.gpu
    # Below the mode that is called there may be another one.
    noting = NoteHome() if _len_torch_dispatch_stack() else nullcontext()
    with at_work(None), machine.entered(), noting:
        result = run(*args, **kwargs)
    if home is not None:  # or the machine's mode would place it there
        for tensor in tensors_in(result):
            keep_on_host(tensor)
    return result


def _bring(machine: Machine, func: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
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
    if home is not None:
        args, kwargs = _named(args, home, machine), _named(kwargs, home, machine)
    return args, kwargs


def _named(values: Any, home: Gpu, machine: Machine) -> Any:
    """``values`` (of a tuple or dict) with the device of the values told as that of the tensors."""
    if isinstance(values, dict):
        return {name: _name(value, home, machine) for name, value in values.items()}
    return tuple(_name(value, home, machine) for value in values)


def _name(value: Any, home: Gpu, machine: Machine) -> Any:
    if value.__class__ is torch.device and value.type == machine.backing.type:
        return home.device
    return value


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
    """What stands in ``kind`` itself as its ``__torch_dispatch__``, if it is one that must see the machine."""
    raw = vars(kind).get("__torch_dispatch__")
    function = getattr(raw, "__func__", raw)
    known = raw is None or raw is torch._C._disabled_torch_dispatch_impl or hasattr(function, _WRAPPED)
    return None if known or f"{kind.__module__}.".startswith(_LEFT_ALONE) else raw


def _classes(base: Any) -> Iterator[type]:
    for kind in base.__subclasses__():
        yield kind
        yield from _classes(kind)


def patches(machine: Machine) -> Iterator[Patch]:
    """Classes that dispatch, those that there are and those to come; the tensors that wrap others."""
    for base in (Tensor, TorchDispatchMode):
        for kind in dict.fromkeys(_classes(base)):
            raw = _own_dispatch(kind)
            if raw is not None:
                yield Patch(kind, "__torch_dispatch__", _dispatching(raw))
        yield Patch(base, "__init_subclass__", _watching(base))
    yield from _of_modes()
    yield from _of_wrappers()


def _watching(base: Any) -> Any:
    before = vars(base).get("__init_subclass__")

    def init_subclass(cls: Any, /, **options: Any) -> None:
        if before is None:
            super(base, cls).__init_subclass__(**options)
        else:
            before.__func__(cls, **options)
        if machine_in_use() is None:
            return
        class_made(cls)
        raw = _own_dispatch(cls)
        if raw is not None:
            cls.__torch_dispatch__ = _dispatching(raw)

    return classmethod(init_subclass)


def _of_modes() -> Iterator[Patch]:
    enter, leave = TorchDispatchMode.__enter__, TorchDispatchMode.__exit__

    # As with saved_tensors_hooks: a mode can be entered several times, and entered ones can outlast the machine.
    def enter_noting(self: Any) -> Any:
        if not f"{type(self).__module__}.".startswith(_LEFT_ALONE):
            self.__dict__.setdefault("_labkit_modes", []).append(NoteHome())
            self._labkit_modes[-1].__enter__()
        return enter(self)

    def leave_noting(self: Any, *exc_info: Any) -> Any:
        result = leave(self, *exc_info)
        modes = self.__dict__.get("_labkit_modes")
        if modes and take_off(modes[-1]):
            modes.pop()
        return result

    yield Patch(TorchDispatchMode, "__enter__", enter_noting)
    yield Patch(TorchDispatchMode, "__exit__", leave_noting)


@handles(Tensor.__reduce_ex__)
def _reduce(mode: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a wrapper is saved as: made anew, by its options, where it is (torch/_tensor.py, _reduce_ex_internal)."""
    found, gpu = func(*args, **kwargs), gpu_of(args[0])
    if gpu is None or found[1][0] is not torch._utils._rebuild_wrapper_subclass:
        return found
    rebuild, (make, kind, options, *state) = found
    there = tuple(gpu.device if isinstance(option, torch.device) else option for option in options)
    return rebuild, (make, kind, there, *state)


def _of_wrappers() -> Iterator[Patch]:
    """A wrapper is on the GPU that it was made for, and takes no room there: its inner tensors do."""
    make: Any = Tensor._make_wrapper_subclass

    @functools.wraps(make)
    def make_wrapper(cls: type, size: Any, *args: Any, **kwargs: Any) -> Tensor:
        machine, options = machine_in_use(), dict(zip(_OPTIONS, args, strict=False)) | kwargs
        device = options.get("device")
        gpu = None if machine is None or device is None else machine.resolve(device)
        if gpu is None:
            return make(cls, size, *args, **kwargs)
        # Asked for its device, it would answer C++ with a GPU that is not there.
        options |= {"device": gpu.machine.backing, "dispatch_device": False}
        wrapper: Tensor = make(cls, size, **options)
        put_wrapper(wrapper, gpu)
        return wrapper

    yield Patch(Tensor, "_make_wrapper_subclass", staticmethod(make_wrapper))
