"""Mark gradients made by C++ where Python first sees them.

Autograd's engine works below torch's Python API, so its gradients carry no mark. Python first sees them at ``.grad``,
at ``torch.autograd.grad``, in hooks and in the arguments of ``Function.backward``. Each place knows the device: that
of the tensor to which the gradient belongs, as the engine enforces (torch/csrc/autograd/engine.cpp, validate_outputs).
The engine's own checks compare real devices, which are all the CPU here. The checks that users can fail are therefore
repeated for simulated devices, with the engine's messages.
"""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction, Function
from torch.autograd.graph import GradientEdge
from torch.utils.weak import WeakIdKeyDictionary

from labkit.base.patches import Patch

from .. import hooks
from ..handlers import handles
from ..rules.same_device import ANYWHERE, check_assigned_grad, check_returned, check_seed
from ..state.current_machine import at_work, call_with_machine, machine_in_use, replaces
from ..state.gpu import Gpu, TheMachine
from ..state.leaves import backward_runs, engine_waits
from ..state.marks import HOST, KEPT, real_device
from ..state.placement import gpu_of, gpus_of, keep_on_host, note_leaf, put
from ..state.streams import Stream, restore_stream, stream_on
from .mode import MachineMode

_grads: Any = Tensor.grad  # a property; torch's stubs give the type of its value
_get_grad, _set_grad = _grads.__get__, _grads.__set__
_storage: Any = Tensor.untyped_storage
# Function.apply puts on the graph node: the GPUs of the outputs, those of the inputs, and the stream of forward, where
# backward runs too. The node is the ctx of forward and backward (torch/csrc/autograd/python_function.cpp, THPFunction).
_OUTPUTS, _INPUTS, _STREAM = "_labkit_outputs", "_labkit_inputs", "_labkit_stream"


def mark_gradient(grad: Tensor | None, gpu: Gpu | None) -> Tensor | None:
    """Return ``grad`` marked as on ``gpu``; a copy if its storage belongs to another GPU already.

    Gradients on several GPUs can share a storage: on the CPU the backward of a copy is the identity (ToCopyBackward0 is
    a ``to`` of the same device), and that of a sum gives both sides the same tensor.
    """
    if grad is None or not isinstance(grad, Tensor):
        return grad
    try:  # look at the storage once: a call of DataParallel has a gradient for each weight of each replica
        storage = _storage(grad)
        at, unmarked = storage._labkit_mark.gpu, storage._labkit_mark is HOST
    except (NotImplementedError, RuntimeError, ValueError):
        at, unmarked = gpu_of(grad), False
    if at is gpu:
        return grad
    if unmarked and gpu is not None and real_device(storage).type != "meta":
        gpu.put(storage)
        return grad
    if at is not None:
        with torch._C.DisableTorchFunction():  # the clone must not be marked as on the gradient's GPU
            grad = grad.clone()
    return put(grad, gpu)


@handles(_get_grad)
def _grad(mode: MachineMode, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    tensor = args[0]
    grad = func(tensor)
    if grad is None:
        return None
    try:
        gpu, storage = _storage(tensor)._labkit_mark.gpu, _storage(grad)
        at = storage._labkit_mark.gpu
        if at is gpu or storage._labkit_mark is KEPT or (_unmoved_gradients and _has_not_moved(tensor, grad)):
            return grad
        if at is None and real_device(storage).type != "meta":
            if gpu.leaves.held and grad._is_view():  # of a Reducer's bucket
                gpu.leaves.release(storage.nbytes())
            gpu.put(storage)
            return grad
    except (NotImplementedError, RuntimeError):
        gpu = gpu_of(tensor)
    if _unmoved_gradients and _has_not_moved(tensor, grad):
        return grad
    marked = mark_gradient(grad, gpu)
    if marked is not grad:
        # Keep the copy, so that `.grad` is always the same object.
        _set_grad(tensor, marked)
    return marked


# A tensor whose data has moved to another device -> a weak reference to its gradient, which is still on the old one.
_unmoved_gradients: Any = WeakIdKeyDictionary()


def _has_not_moved(tensor: Tensor, grad: Tensor) -> bool:
    """Whether ``grad`` is still on the old device of ``tensor``."""
    left = _unmoved_gradients.get(tensor)
    return left is not None and left() is grad


@handles(Tensor.data.__set__)
def _set_data(mode: MachineMode, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Set data, possibly of another device, and leave the gradient on the old one until it is moved too.

    Module.to moves a parameter and its gradient so, one after the other (torch/nn/modules/module.py, _apply).
    """
    tensor, data = args
    before, after = gpu_of(tensor), gpu_of(data) if isinstance(data, Tensor) else None
    mode.check_own(before)
    mode.check_own(after)
    grad = _get_grad(tensor) if tensor.is_leaf and isinstance(data, Tensor) else None
    if grad is not None and after is not before:
        grad = _grad(mode, _get_grad, (tensor,), {})
        _unmoved_gradients[tensor] = weakref.ref(grad)
        keep_on_host(grad)
    result = func(*args)
    note_leaf(tensor)
    return result


@handles(Tensor.requires_grad_, Tensor.requires_grad.__set__, Tensor.retain_grad)
def _requires_grad(mode: MachineMode, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    result = func(*args, **kwargs)
    note_leaf(args[0])
    return result


@handles(_set_grad, _grads.__delete__)
def _assign_grad(mode: MachineMode, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    tensor = args[0]
    check_assigned_grad(*args)
    # Keep the old gradient alive during the call. Freeing it runs Python code and may switch threads, and another
    # thread would then read a gradient that is being freed.
    before = tensor.is_leaf and _get_grad(tensor)
    result = func(*args)
    del before
    return result


@handles(Tensor.register_hook)
def _register_hook(mode: MachineMode, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    tensor, hook = args
    gpu, owner = gpu_of(tensor), weakref.ref(tensor)
    stream = getattr(tensor.grad_fn, _STREAM, None) or stream_on(gpu)

    @functools.wraps(hook, updated=())
    def on_gpu(grad: Tensor) -> Any:
        machine = machine_in_use()
        if machine is None:
            return hook(grad)
        now = owner()  # a parameter may have moved
        home = gpu if now is None else gpu_of(now)
        with machine.use_in_thread(), restore_stream(stream):
            return hook(mark_gradient(grad, home) if home is None or home.machine is machine else grad)

    return func(tensor, on_gpu)


@handles(Tensor.register_post_accumulate_grad_hook)
def _register_post_hook(mode: MachineMode, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    tensor, hook = args
    stream = stream_on(gpu_of(tensor))

    @functools.wraps(hook, updated=())
    def on_gpu(accumulated: Tensor) -> Any:
        with restore_stream(stream):
            return call_with_machine(hook, accumulated)

    return func(tensor, on_gpu)


@handles(Tensor.backward, torch.autograd.grad)
def _run_backward(mode: MachineMode, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    # Check no devices: they may differ. The engine (patched below) turns the mode on, which is off in a handler and in
    # every hook that C++ calls on this thread.
    return func(*args, **kwargs)


@replaces(torch.utils, "swap_tensors")
def _swap(
    machine: TheMachine, real: Callable[[Tensor, Tensor], object], first: Tensor, second: Tensor
) -> None:
    """Swap two tensors, without our weak references to them, which torch refuses (Module.to_empty of DTensors)."""
    for gpu in machine.gpus:
        gpu.leaves.forget(first)
        gpu.leaves.forget(second)
    try:
        real(first, second)
    finally:
        note_leaf(first)
        note_leaf(second)


@replaces(Tensor, "_make_subclass")
def _make_subclass(_: TheMachine, real: Callable[..., Tensor], *args: Any, **kwargs: Any) -> Tensor:
    made = real(*args, **kwargs)
    note_leaf(made)  # a parameter
    return made


@replaces(torch.autograd, "_engine_run_backward")
def _run_engine(
    machine: TheMachine, real: Any, t_outputs: Any, grad_tensors: Any, *options: Any, **named: Any
) -> Any:
    """Run autograd's engine. ``options``: keep_graph, create_graph and the inputs, if any (torch/autograd/graph.py)."""
    outputs = (t_outputs,) if isinstance(t_outputs, Tensor) else t_outputs
    for output, grad in zip(outputs, grad_tensors, strict=False):
        check_seed(output, grad)
    grad_tensors = tuple(map(_seed, outputs, grad_tensors))
    with ExitStack() as stack:
        stack.enter_context(at_work(_gpu_of_root(outputs[0]) if outputs else None))
        stack.enter_context(backward_runs(set(map(_gpu_of_root, outputs)), machine.gpus))
        for inside in hooks.backward_contexts:
            stack.enter_context(inside(machine, outputs))
        stack.enter_context(at_work(None, engine=True))
        result = call_with_machine(real, t_outputs, grad_tensors, *options, **named)
    if isinstance(result, tuple):
        inputs = options[2] if len(options) > 2 else named.get("inputs", ())
        wanted = (inputs,) if isinstance(inputs, Tensor) else inputs
        result = tuple(
            mark_gradient(grad, gpu_of(tensor)) if isinstance(tensor, Tensor) else grad
            for grad, tensor in zip(result, map(_variable, wanted), strict=False)
        )
    return result


def _gpu_of_root(output: Any) -> Any:
    """Return the GPU where a backward pass begins; None for an edge of the graph, which knows no GPU."""
    return gpu_of(output) if isinstance(output, Tensor) else None


def _variable(wanted: Any) -> Any:
    """Return the tensor for a wanted gradient, given by itself or by a GradientEdge."""
    return getattr(wanted.node, "variable", wanted) if isinstance(wanted, GradientEdge) else wanted


def _seed(output: Any, grad: Any) -> Any:
    """Return the gradient to start from. torch makes a single value on the host: move it to the output's GPU."""
    gpu = gpu_of(output) if isinstance(output, Tensor) else None
    if gpu is None or not isinstance(grad, Tensor) or gpu_of(grad) is not None:
        return grad
    return mark_gradient(grad.clone(), gpu)


@hooks.patches.add
def patches(machine: TheMachine) -> Iterator[Patch]:
    """Let a Function's node remember the GPUs of its outputs, where its backward gets the gradients."""
    # Patch Function's base: an `apply` bound before the machine was in use comes here too.
    base: type[Any] = Function.__mro__[1]
    forward = inspect.getattr_static(base, "apply")

    def apply(cls: type[Function], *args: Any, **kwargs: Any) -> Any:
        # C++ calls this too, for operators registered in Python (torch/_library/autograd.py).
        result = call_with_machine(forward.__get__(None, cls), *args, **kwargs)
        outputs = (result,) if isinstance(result, Tensor) else result
        listed = outputs if isinstance(outputs, (tuple, list)) else ()
        with torch._C.DisableTorchFunction():  # the mode need not see these questions
            nodes = (one.grad_fn for one in listed if isinstance(one, Tensor))
            node = next((one for one in nodes if isinstance(one, BackwardCFunction)), None)
        if node is not None:
            made = gpus_of(outputs)
            setattr(node, _OUTPUTS, made)
            setattr(node, _INPUTS, gpus_of(args, ANYWHERE))
            setattr(node, _STREAM, stream_of(made))
        return result

    yield Patch(base, "apply", classmethod(apply))


@replaces(BackwardCFunction, "apply")
def _backward(machine: TheMachine, real: Callable[..., Any], node: Any, *grads: Any) -> Any:
    gpus = getattr(node, _OUTPUTS, ())
    if len(gpus) != len(grads):
        return real(node, *grads)
    with machine.use_in_thread(), restore_stream(getattr(node, _STREAM, None)), engine_waits(machine.gpus):
        results = real(node, *map(mark_gradient, grads, gpus))
        returned = results if isinstance(results, tuple) else (results,)
        check_returned(type(node).__name__, returned, getattr(node, _INPUTS, ()))
        return results


def stream_of(gpus: Iterable[Gpu | None]) -> Stream | None:
    """Return the stream of a node whose outputs are on ``gpus``."""
    return stream_on(next((gpu for gpu in gpus if gpu is not None), None))
