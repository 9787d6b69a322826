"""The function mode through which torch sees the simulated GPUs.

Every call of torch's Python API passes :meth:`MachineMode.__torch_function__`. Most take the short path: check that all
tensors are on one device, call the function, mark the result as on that device. Other functions have a handler in
:data:`HANDLERS`, filled by the modules beside this one and by :mod:`..features`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from types import MethodType
from typing import Any

import torch
from torch import Tensor
from torch._C import (
    _get_function_stack_at,
    _len_torch_function_stack,
    _pop_torch_function_stack,
    _push_on_torch_function_stack,
)
from torch._ops import OpOverload
from torch.nn import Parameter
from torch.overrides import TorchFunctionMode
from torch.utils._device import DeviceContext

from labkit.base.patches import Patch
from labkit.base.tree import tensors_in

from .. import hooks
from ..handlers import HANDLERS, ByDtype, functions_in_row, handles
from ..rules.functions import ALWAYS, check_function
from ..stack import hands_on, without_modes
from ..state.current_machine import at_work, call_with_machine, replaces
from ..state.gpu import Gpu, TheMachine
from ..state.marks import HOST
from ..state.placement import gpu_of, note_leaf, put, put_all, put_anew
from .mixed import run_mixed

_storage: Any = Tensor.untyped_storage
# Types of arguments and results without a tensor inside.
_PLAIN = frozenset(
    {int, float, bool, str, type(None), torch.Size, torch.dtype, torch.memory_format, slice, type(...)}
)
_all_plain = _PLAIN.issuperset


class MachineMode(TorchFunctionMode):
    """Function mode to show torch the GPUs of a machine."""

    def __init__(self, machine: Any) -> None:
        self.machine = machine
        self._answer: Callable[..., Any] | None = None
        self._observer: Callable[..., Any] | None = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Answer one call of torch: by its handler, or on the GPU that its tensors share."""
        # The path of every operation: no call, loop or allocation that is not needed. While it runs, C++ has
        # taken this mode off the stack, so calls from here do not come back (torch/csrc/utils/python_arg_parser.cpp,
        # handle_torch_function_no_python_arg_parser).
        if types and types[0] is not Tensor and types[0] is not Parameter and hands_on():
            # A tensor subclass (or another class) with its own __torch_function__: C++ asks that next, with this mode
            # back on the stack (dispatch_on_subclass there), so that the subclass's calls come here.
            return NotImplemented
        if func in HANDLERS:
            handler: Any = HANDLERS[func]
            if handler is None:
                return func(*args, **kwargs) if kwargs else func(*args)
            if handler.__class__ is ByDtype:
                first = args[0] if args else None
                dtype = first.dtype if first.__class__ is Tensor else _first_dtype(args, kwargs)
                handler = handler.get(dtype)
            if handler is not None:
                return handler(self, func, args, kwargs or {})
        values = args
        special = False  # whether to call general(), outside the try block below: its errors are the user's
        if kwargs:
            # A device places the result; an out tensor may be resized.
            special = (
                kwargs.get("device") is not None or kwargs.get("out") is not None or "requires_grad" in kwargs
            )
            values = (*args, *kwargs.values())
        home: Any = False  # False: no tensor yet; None: the host
        try:
            for arg in values:
                kind = arg.__class__
                # Most tensors are of these two classes: isinstance() would ask Parameter's metaclass, in Python.
                if kind is Tensor or kind is Parameter:
                    # The GPU, not the mark: each reference to a mark counts as a storage (state/gpu.py).
                    gpu = _storage(arg)._labkit_mark.gpu
                    if gpu is not home:
                        if home is not False:
                            special = True
                            break
                        home = gpu
                elif kind in _PLAIN:
                    continue
                elif kind is list or kind is tuple:
                    if not _all_plain(map(type, arg)):
                        gpu = _shared_gpu(arg)
                        if gpu is None or (gpu is not home and home is not False):
                            special = True
                            break
                        home = gpu
                # Subclasses count too, such as the namedtuples that torch returns.
                elif isinstance(arg, (Tensor, tuple, list, dict)):
                    special = True
                    break
        except (NotImplementedError, RuntimeError, ValueError):
            special = True  # a tensor without a storage, for which gpu_of() looks at its parts
        if special:
            return self.general(func, args, kwargs or {})
        try:
            result = func(*args, **kwargs) if kwargs else func(*args)
        except (RuntimeError, IndexError) as error:
            if not home:
                raise
            result = translate_cpu_error(func, args, kwargs or {}, error, home)
        if home:
            if result.__class__ is Tensor:
                try:
                    storage = _storage(result)
                    if storage._labkit_mark is HOST:
                        # home.put(storage), written out
                        storage._labkit_mark = mark = home.marks[len(storage)]
                        home.room = room = home.room - mark.block
                        if room < 0:
                            del mark
                            home.recount(storage)
                    elif home.suspended:  # a view, or a result written in place
                        raise stale(home)
                except KeyError:  # the first storage of its size
                    put(result, home)
                except (NotImplementedError, RuntimeError) as error:
                    if (
                        isinstance(error, torch.OutOfMemoryError)
                        or home.suspended
                        or home.machine is not self.machine
                    ):
                        raise
                    put(result, home)
            elif result.__class__ not in _PLAIN:
                put_all(result, home)
        return result

    def answer_by(self, answer: Callable[..., Any] | None) -> None:
        """Let ``answer(mode, func, types, args, kwargs)`` answer each call from now on; None restores this class.

        C++ and Python look ``__torch_function__`` up on the object, so the path above needs no test for this.
        """
        self._answer = answer
        self._settle()

    def observe_by(self, observer: Callable[..., Any] | None) -> None:
        """Let ``observer(answer, mode, func, types, args, kwargs)`` call ``answer`` from now on; None ends this."""
        self._observer = observer
        self._settle()

    def _settle(self) -> None:
        answer = self._answer
        if self._observer is not None:
            answer = functools.partial(self._observer, answer or MachineMode.__torch_function__)
        if answer is None:
            vars(self).pop("__torch_function__", None)
        else:
            vars(self)["__torch_function__"] = MethodType(answer, self)

    def retire(self) -> None:
        """Pass calls on from now on, to the machine in use, because threads may outlive this machine."""
        self.answer_by(_pass_on)

    def general(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Answer any call: with tensors in lists and keywords, a ``device=`` keyword, several devices."""
        tensors = tensors_in(*args, *kwargs.values())
        gpus = {gpu_of(tensor) for tensor in tensors}
        for gpu in gpus:
            self.check_own(gpu)
        if (len(gpus) > 1 or "device" in kwargs) and any(itself(func) for itself in hooks.places_itself):
            return func(*args, **kwargs)
        chosen = kwargs.get("device")
        if chosen is None:
            target = next(iter(gpus)) if len(gpus) == 1 else None
        else:
            target = self.machine.resolve(chosen)
            kwargs = {**kwargs, "device": self.machine.real(target, chosen)}
        try:
            if len(gpus) > 1:
                result = run_mixed(func, args, kwargs, gpu_of(tensors[0]))
            else:
                with at_work(target, whole=target in gpus or (target is None and chosen is not None)):
                    result = func(*args, **kwargs)
        except (RuntimeError, IndexError) as error:
            home = target or (gpu_of(tensors[0]) if tensors else None)
            if home is None:
                raise
            result = translate_cpu_error(func, args, kwargs, error, home)
        put_all(result, target)
        if kwargs.get("requires_grad") and target is not None:
            note_leaf(result)
        if "out" in kwargs:  # the call may have resized an out tensor
            for out in tensors_in(kwargs["out"]):
                put_anew(out, target)
        return result

    def check_own(self, gpu: Gpu | None) -> None:
        """Raise if ``gpu`` belongs to another machine."""
        if gpu is not None and gpu.machine is not self.machine:
            raise stale(gpu)


def _first_dtype(args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> torch.dtype | None:
    tensors = tensors_in(*args, kwargs)
    return tensors[0].dtype if tensors else None


def _shared_gpu(values: Any) -> Gpu | None:
    """Return the GPU of ``values`` if all are plain tensors on one; None for general() to find out."""
    gpus = {
        _storage(value)._labkit_mark.gpu
        if value.__class__ is Tensor or value.__class__ is Parameter
        else None
        for value in values
    }
    gpu: Gpu | None = gpus.pop() if len(gpus) == 1 else None
    return None if gpu is None or gpu.suspended else gpu


def translate_cpu_error(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], error: RuntimeError | IndexError, gpu: Gpu
) -> Any:
    """Turn an error from a CPU kernel into what CUDA would do: return a result, or raise CUDA's own error."""
    with at_work(gpu):
        for answer in hooks.call_failed:
            result = answer(func, args, kwargs, error, gpu)
            if result is not NotImplemented:
                return result
        raise error


def _pass_on(mode: MachineMode, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    return call_with_machine(func, *args, **(kwargs or {}))


def stale(gpu: Gpu) -> RuntimeError:
    """Return the error for a tensor of another machine."""
    return RuntimeError(gpu.machine.stale_text(gpu))


class _BelowMode:
    """A function of torch that passes below the machine's mode. torch.export asks whether it equals torch's own."""

    def __init__(self, function: Callable[..., Any], mode: MachineMode) -> None:
        functools.update_wrapper(self, function)
        self._function, self._mode = function, mode

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if _len_torch_function_stack() != 1 or _get_function_stack_at(0) is not self._mode:
            return self._function(*args, **kwargs)  # the user's modes see the call
        _pop_torch_function_stack()
        try:
            return self._function(*args, **kwargs)
        finally:
            _push_on_torch_function_stack(self._mode)

    def __get__(self, tensor: Tensor | None, _: type) -> Any:
        return self if tensor is None else MethodType(self, tensor)

    def __eq__(self, other: object) -> bool:
        return other is self or other is self._function

    def __hash__(self) -> int:
        return hash(self._function)


@hooks.patches.add
def patches(machine: TheMachine) -> Iterator[Patch]:
    """Functions that pass below the machine's mode.

    The switch of grad mode: C++ passes it to function modes, and imports ``torch._C`` at each call for that
    (torch/csrc/autograd/init.cpp, set_grad_enabled). This takes longer than many operations, and a training step
    switches four times. dim_order: it loses its keywords under any mode (torch/_tensor.py).
    """
    mode = machine.mode
    yield Patch(torch._C, "_set_grad_enabled", _BelowMode(torch._C._set_grad_enabled, mode))
    yield Patch(Tensor, "dim_order", _BelowMode(Tensor.dim_order, mode))

    # OpOverload.decompose runs an operator by another dispatch key (torch/_ops.py). C++ passes modes the arguments
    # without the key, so that under any mode the operator would come back to its caller.
    def get(operator: Any) -> Any:
        run_by = vars(operator)["_op_dk"]

        def run(key: Any, *args: Any, **kwargs: Any) -> Any:
            def run_without_modes(*args: Any, **kwargs: Any) -> Any:
                with without_modes():
                    return run_by(key, *args, **kwargs)

            if not _len_torch_function_stack():
                return run_by(key, *args, **kwargs)
            if operator in HANDLERS:  # operators to move tensors; the parts would see the CPU everywhere
                return operator(*args, **kwargs)
            return mode.general(run_without_modes, args, kwargs)

        return run

    def set_(operator: Any, run_by: Any) -> None:
        vars(operator)["_op_dk"] = run_by

    yield Patch(OpOverload, "_op_dk", property(get, set_))


@replaces(DeviceContext, "__exit__")
def _end_alone(_: TheMachine, real: Callable[..., object], context: DeviceContext, *exc_info: object) -> None:
    """End a default device without other modes on the stack, which it would take off instead of itself.

    Within a hook, only the machine's modes are on the stack (torch/utils/_device.py, __exit__).
    """
    others = _len_torch_function_stack() and not isinstance(_get_function_stack_at(0), DeviceContext)
    with without_modes() if others else nullcontext():
        real(context, *exc_info)


# Functions of a single tensor without a new tensor as result.
HANDLERS.update(dict.fromkeys(functions_in_row("anywhere")))


@handles(*ALWAYS)
def _check_and_run(mode: MachineMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Check and run a function which CUDA may refuse even on a single device."""
    check_function(func, args, kwargs)
    return mode.general(func, args, kwargs)


def _about(of_gpu: Callable[[Gpu], Any], *functions: object) -> None:
    """Let ``of_gpu`` answer ``functions`` of a tensor on a GPU."""

    @handles(*functions)
    def answer(mode: MachineMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        gpu = gpu_of(args[0])
        return func(*args, **kwargs) if gpu is None else of_gpu(gpu)


_about(lambda gpu: gpu.device, Tensor.device.__get__)
_about(lambda gpu: True, Tensor.is_cuda.__get__)
_about(lambda gpu: False, Tensor.is_cpu.__get__)
_about(lambda gpu: gpu.index, Tensor.get_device, torch.get_device)


@handles(Tensor.__repr__)
def _repr(mode: MachineMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    # torch's own printing reads the tensor's device. A subclass prints as its base would.
    with mode.machine.use_in_thread(), torch._C.DisableTorchFunctionSubclass():
        return torch._tensor_str._str(*args, **kwargs)


@handles(Tensor.__format__)
def _format(mode: MachineMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    # f"{x}" prints the tensor, a subclass in its own way, but formats a single number (torch/_tensor.py).
    tensor, spec = args
    if tensor.__class__ is Tensor and not tensor.dim():
        return func(*args, **kwargs)
    with mode.machine.use_in_thread():
        return object.__format__(tensor, spec)
