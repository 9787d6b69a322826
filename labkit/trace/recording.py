"""record: a trace of data-parallel calls, by labkit's engine and by torch.nn.parallel alike.

While a recording is open, the four verbs (and the backward of each collective) are wrapped where the two
``data_parallel`` modules look them up. With none open nothing is wrapped, so not recording costs nothing.
"""

from __future__ import annotations

import functools
import importlib
import threading
from contextlib import contextmanager
from time import perf_counter

import torch
from torch import Tensor

from ..engine.devices import as_device
from ..base.tree import leaves
from . import events as trace

_lock = threading.Lock()
_open = 0
_undo: list[tuple[object, str, object]] = []


@contextmanager
def record():
    """Record what happens inside: ``with labkit.record() as trace: model(batch).sum().backward()``.

    Gives a :class:`labkit.Trace` with the phases of every data-parallel call, forward and backward,
    and, on the simulated machine, every other copy between devices.
    """
    found = trace.begin()
    _install()
    try:
        yield found
    finally:
        trace.end(found)
        _remove()
        _without_inner_copies(found)


def _install() -> None:
    global _open
    with _lock:
        _open += 1
        if _open > 1:
            return
        for package in ("torch.nn.parallel", "labkit.engine"):
            calls = importlib.import_module(f"{package}.data_parallel")
            for name, wrap in _VERBS.items():
                _set(calls, name, wrap(getattr(calls, name)))
        theirs = importlib.import_module("torch.nn.parallel._functions")
        ours = importlib.import_module("labkit.engine.functions")
        copies = importlib.import_module("labkit.engine.functions")
        for function, phase in (
            (theirs.Broadcast, "replicate"), (theirs.Scatter, "scatter"), (theirs.Gather, "gather"),
            (copies.Broadcast, "replicate"), (ours.Scatter, "scatter"), (ours.Gather, "gather"),
        ):  # fmt: skip
            _set(function, "backward", staticmethod(_backward(function.__dict__["backward"].__func__, phase)))


def _remove() -> None:
    global _open
    with _lock:
        _open -= 1
        if not _open:
            while _undo:
                setattr(*_undo.pop())


def _set(owner, name, value) -> None:
    _undo.append((owner, name, vars(owner)[name]))
    setattr(owner, name, value)


def _name(device) -> str:
    return str(as_device(device))


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _scatter_kwargs(scatter_kwargs):
    @functools.wraps(scatter_kwargs)
    def recorded(inputs, kwargs, target_gpus, dim=0):
        started = perf_counter()
        pieces = scatter_kwargs(inputs, kwargs, target_gpus, dim)
        source = next((str(t.device) for _, t in _tensors((inputs, kwargs or {}), "")), None)
        for at, device in enumerate(list(target_gpus)[: len(pieces[0])]):
            tensors = [t for _, t in _tensors((pieces[0][at], pieces[1][at]), "")]
            _emit("scatter", _name(device), started, tensors, source=source)
        return pieces

    return recorded


def _replicate(replicate):
    @functools.wraps(replicate)
    def recorded(network, devices, detach=False):
        started = perf_counter()
        replicas = replicate(network, devices, detach)
        tensors = [*network.parameters(), *network.buffers()]
        home = _name(devices[0])
        for device in devices:
            moved = [] if _name(device) == home else tensors
            _emit(
                "replicate", _name(device), started, moved, source=home,
                shapes=tuple(tuple(t.shape) for t in tensors), name=type(network).__name__,
            )  # fmt: skip
        return replicas

    return recorded


class _Replica:
    """Stands for a replica in parallel_apply and notes when it runs, forward and backward."""

    def __init__(self, module, device) -> None:
        self._module, self._device = module, device

    def __call__(self, *inputs, **kwargs):
        started = perf_counter()
        outputs = self._module(*inputs, **kwargs)
        given = tuple(tuple(t.shape) for _, t in _tensors((inputs, kwargs), ""))
        made = [t for _, t in _tensors(outputs, "")]
        name = type(self._module).__name__
        trace.emit(
            "parallel_apply", self._device, started=started, shapes=given,
            outputs=tuple(tuple(t.shape) for t in made), name=name,
        )  # fmt: skip
        self._watch_backward(inputs, kwargs, made, given, name)
        return outputs

    def _watch_backward(self, inputs, kwargs, made, given, name) -> None:
        """The backward of a replica lasts from its outputs' gradient to its last parameter's or input's."""
        span = {"start": None, "left": 0}
        device = self._device

        def begin(grad):
            if span["start"] is None:
                span["start"] = perf_counter()

        def arrived(grad):
            span["left"] -= 1
            if span["left"] == 0 and span["start"] is not None:
                trace.emit(
                    "parallel_apply", device, started=span["start"], direction="backward",
                    shapes=tuple(tuple(t.shape) for t in made), outputs=given, name=name,
                )  # fmt: skip

        ends = [t for m in self._module.modules() for t in getattr(m, "_former_parameters", {}).values()]
        ends += [t for _, t in _tensors((inputs, kwargs), "")]
        ends = {id(t): t for t in ends if isinstance(t, Tensor) and t.requires_grad}.values()
        starts = [t for t in made if t.requires_grad]
        if not starts or not ends or not torch.is_grad_enabled():
            return
        span["left"] = len(ends)
        for tensor in starts:
            tensor.register_hook(begin)
        for tensor in ends:
            tensor.register_hook(arrived)


def _parallel_apply(parallel_apply):
    # The name matters: threads started here are replicas (see labkit.machine.state.threads).
    @functools.wraps(parallel_apply)
    def recorded(modules, inputs, kwargs_tup=None, devices=None):
        watched = [
            _Replica(m, _name(d)) for m, d in zip(modules, devices or range(len(modules)), strict=True)
        ]
        return parallel_apply(watched, inputs, kwargs_tup, devices)

    return recorded


def _gather(gather):
    @functools.wraps(gather)
    def recorded(outputs, target_device, dim=0):
        started = perf_counter()
        result = gather(outputs, target_device, dim)
        for output in outputs:
            tensors = [t for _, t in _tensors(output, "")]
            source = str(tensors[0].device) if tensors else None
            _emit("gather", _name(target_device), started, tensors, source=source)
        return result

    return recorded


def _backward(backward, phase):
    @functools.wraps(backward)
    def recorded(ctx, *grads):
        started = perf_counter()
        result = backward(ctx, *grads)
        tensors = [grad for grad in grads if isinstance(grad, Tensor)]
        results = [t for t in result if isinstance(t, Tensor)]
        if phase == "gather":  # one gradient goes out to the devices
            for made in results:
                _emit(
                    phase,
                    str(made.device),
                    started,
                    [made],
                    source=str(tensors[0].device),
                    direction="backward",
                )
        else:  # gradients come in from the devices
            home = str(results[0].device) if results else "cpu"
            by_device: dict[str, list[Tensor]] = {}
            for grad in tensors:
                by_device.setdefault(str(grad.device), []).append(grad)
            for source, group in by_device.items():
                _emit(phase, home, started, group, source=source, direction="backward")
        return result

    return recorded


def _emit(phase, device, started, tensors, *, source=None, direction="forward", shapes=None, name="") -> None:
    moved = sum(map(_bytes, tensors)) if source != device else 0
    trace.emit(
        phase, device, started=started, source=source, direction=direction, name=name, nbytes=moved,
        shapes=tuple(tuple(t.shape) for t in tensors) if shapes is None else shapes,
    )  # fmt: skip


_VERBS = {
    "scatter_kwargs": _scatter_kwargs,
    "replicate": _replicate,
    "parallel_apply": _parallel_apply,
    "gather": _gather,
}


def _without_inner_copies(found: trace.Trace) -> None:
    """Leave out the copies of which a scatter, replicate or gather consists: they are counted there."""
    spans = [(e.start, e.stop) for e in found.events if e.phase in ("scatter", "replicate", "gather")]
    found.events[:] = [
        e
        for e in found.events
        if e.phase != "copy" or not any(start <= e.start and e.stop <= stop for start, stop in spans)
    ]
    found.events.sort(key=lambda event: event.start)


def _tensors(value, path):
    return [(way, leaf) for way, leaf in leaves(value, path) if isinstance(leaf, Tensor)]
