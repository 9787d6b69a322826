"""Record a trace of data-parallel calls, by labkit's engine and by torch.nn.parallel alike.

While a recording is open, the calls, the four verbs and the backward of each collective are wrapped where they are
looked up (:func:`_table`). Without one nothing is wrapped, so not recording costs nothing.

A call begins at ``DataParallel.forward`` or ``data_parallel``; for verbs called by hand, at the first verb, and at the
first scatter or replicate after the replicas have run. The thread's :class:`.emitting.CallPlace` carries the call into
the verbs and the replicas' threads, and autograd's context of a collective carries it into backward.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import register_multi_grad_hook

from ..base import tree
from ..base.patches import Patch, Patches
from ..engine.devices import Device, as_device
from . import emitting as trace
from .emitting import CallPlace, Opened
from .trace import Trace

# The current call of verbs called by hand, and whether its replicas have run.
_by_hand: ContextVar[tuple[Opened | None, bool]] = ContextVar("labkit_by_hand", default=(None, False))


@contextmanager
def record() -> Iterator[Trace]:
    """Record what happens inside: ``with labkit.record() as trace: model(batch).sum().backward()``.

    Gives a :class:`labkit.Trace` with the phases of every data-parallel call, forward and backward,
    and, on the simulated machine, every other copy between devices.
    """
    _by_hand.set((None, False))
    with _PATCHES:
        found = trace.begin()
        try:
            yield found
        finally:
            trace.end(found)


def _table() -> Iterator[Patch]:
    """Yield the patches while a recording is open."""
    theirs, ours = (
        import_module("torch.nn.parallel.data_parallel"),
        import_module("labkit.engine.data_parallel"),
    )
    # The places where the two data_parallel modules, and code that calls verbs by hand, look them up.
    for package in (theirs, ours, nn.parallel, import_module("labkit.engine"), import_module("labkit")):
        for name, recorded in _VERBS.items():
            if hasattr(package, name):  # hasattr loads labkit's lazy names
                yield Patch.wrap(package, name, recorded)
    for kind in (theirs.DataParallel, ours.DataParallel):
        yield Patch.wrap(kind, "forward", _call)
    functions = import_module("torch.nn.parallel._functions"), import_module("labkit.engine.functions")
    for module in functions:
        for name, facts in _COLLECTIVES.items():
            if hasattr(module, name):
                function = getattr(module, name)
                yield Patch.wrap(function, "forward", _remembering)
                yield Patch.wrap(function, "backward", partial(_backward, *facts))


def _call(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run a data-parallel call: everything inside belongs to it."""
    with trace.set_place(CallPlace(Opened())):
        return function(*args, **kwargs)


def _verb(phase: str, tell: Callable[..., None], verb: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run a verb, then emit its events by ``tell(started, result, *args)``."""
    if trace.place().verb is not None:
        return verb(*args, **kwargs)  # inside another verb, which emits its own event
    call = _call_here(phase)
    started = trace.clock.now()
    with trace.set_place(CallPlace(call, verb=phase)):
        result = verb(*args, **kwargs)
    with trace.set_place(CallPlace(call)):
        tell(started, result, *args, **kwargs)
    return result


def _call_here(phase: str) -> Opened:
    """Return the call of a verb: the current call, or one made of verbs called by hand."""
    here = trace.place()
    if here.call is not None and here.replica is None:
        return here.call
    call, computed = _by_hand.get()
    if call is None or (computed and phase in ("scatter", "replicate")):
        call, computed = Opened(), False
    _by_hand.set((call, computed or phase == "parallel_apply"))
    return call


def _tell_scattered(started: float, pieces: Iterable[Any], given: Any, devices: Sequence[Device]) -> None:
    source, pieces = _device_of(given), list(pieces)
    idle = tuple(map(_name, devices[len(pieces) :]))
    for at, (piece, device) in enumerate(zip(pieces, devices, strict=False)):
        _emit("scatter", _name(device), started, at, _tensors(piece, dataclasses=False), source, idle=idle)


def _scatter(
    started: float, pieces: Sequence[Any], inputs: Any, target_gpus: Sequence[Device], dim: int = 0
) -> None:
    _tell_scattered(started, pieces, inputs, target_gpus)


def _scatter_kwargs(
    started: float, pieces: Any, inputs: Any, kwargs: Any, target_gpus: Sequence[Device], dim: int = 0
) -> None:
    _tell_scattered(started, zip(*pieces, strict=False), (inputs, kwargs), target_gpus)


def _replicate(
    started: float, replicas: Any, network: nn.Module, devices: Sequence[Device], detach: bool = False
) -> None:
    tensors = [*network.parameters(), *network.buffers()]
    for at, device in enumerate(devices):
        source, name = _name(devices[0]), type(network).__name__
        _emit("replicate", _name(device), started, at, tensors, source, name=name)


def _gather(started: float, result: Any, outputs: Sequence[Any], target_device: Device, dim: int = 0) -> None:
    for at, output in enumerate(outputs):
        tensors = _tensors(output)
        _emit("gather", _name(target_device), started, at, tensors, _device_of(tensors))


def _parallel_apply(
    real: Callable[..., Any], modules: Any, inputs: Any, kwargs_tup: Any = None, devices: Any = None
) -> Any:
    call = _call_here("parallel_apply")
    names = [None] * len(modules) if devices is None else list(map(_name, devices))
    watched = [
        _Replica(*pair, CallPlace(call, at)) for at, pair in enumerate(zip(modules, names, strict=True))
    ]
    return real(watched, inputs, kwargs_tup, devices)


class _Replica:
    """A replica in parallel_apply, recorded in forward and backward."""

    def __init__(self, module: nn.Module, device: str | None, place: CallPlace) -> None:
        self._module, self._device, self._place = module, device, place

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)  # labkit's parallel_apply inspects a failed replica

    def __call__(self, *inputs: Any, **kwargs: Any) -> Any:
        given, name = _tensors((inputs, kwargs)), type(self._module).__name__
        device = self._device or _device_of(given) or "cpu"
        before = _by_hand.get()
        _by_hand.set((None, False))  # verbs that forward calls by hand form a new call
        try:
            with trace.set_place(self._place):
                started = trace.clock.now()
                outputs = self._module(*inputs, **kwargs)
                made = _tensors(outputs)
                shapes = _shapes(given), _shapes(made)
                trace.emit(
                    "parallel_apply", device, started=started, shapes=shapes[0], outputs=shapes[1], name=name
                )
        finally:
            _by_hand.set(before)
        facts = {"direction": "backward", "shapes": shapes[1], "outputs": shapes[0], "name": name}
        self._watch_backward(given, made, device, facts)
        return outputs

    def _watch_backward(
        self, given: list[Tensor], made: list[Tensor], device: str, facts: dict[str, Any]
    ) -> None:
        """Record the replica's backward, from the gradient of its outputs to the last gradient of a parameter or
        input.
        """
        weights = [t for m in self._module.modules() for t in getattr(m, "_former_parameters", {}).values()]
        ends = list({id(t): t for t in weights + given if t.requires_grad}.values())
        starts = [tensor for tensor in made if tensor.requires_grad]
        if not starts or not ends or not torch.is_grad_enabled():
            return
        started: list[float] = []
        # Not self: the hooks would keep the replica's weights alive until the next gc.collect().
        place = self._place

        def begin(grad: Tensor) -> None:
            started[:] = [trace.clock.now()]

        def finish(grads: Sequence[Tensor | None]) -> None:
            if started:
                with trace.set_place(place):
                    trace.emit("parallel_apply", device, started=started.pop(), **facts)

        # Both hooks run once for each backward pass; one graph may have several.
        register_multi_grad_hook(starts, begin, mode="any")
        register_multi_grad_hook(ends, finish, mode="all")


def _remembering(forward: Callable[..., Any], ctx: Any, *args: Any) -> Any:
    """Run a collective's forward, and keep its place for the backward."""
    ctx.labkit_place = trace.place()
    return forward(ctx, *args)


def _backward(phase: str, outward: bool, backward: Callable[..., Any], ctx: Any, *grads: Any) -> Any:
    """Record a collective's backward, an event for each replica. ``outward``: from one device to all, not to one."""
    call = getattr(ctx, "labkit_place", CallPlace()).call
    started = trace.clock.now()
    with trace.set_place(CallPlace(call, verb=phase)):
        results = backward(ctx, *grads)
    came, made = ([t for t in some if isinstance(t, Tensor)] for some in (grads, results))
    # Those of all replicas, one replica after the other, and those of the one device.
    many, few = (made, came) if outward else (came, made)
    here = _device_of(few) or "cpu"
    with trace.set_place(CallPlace(call)):
        for replica, at in enumerate(range(0, len(many), len(few) or 1)):
            row = many[at : at + len(few)]
            there = _device_of(row) or "cpu"
            source, device = (here, there) if outward else (there, here)
            _emit(phase, device, started, replica, row, source, direction="backward")
    return results


def _emit(
    phase: str,
    device: str,
    started: float,
    replica: int,
    tensors: list[Tensor],
    source: str | None,
    **facts: Any,
) -> None:
    moved = 0 if source == device else sum(t.numel() * t.element_size() for t in tensors)
    facts |= {"source": source, "nbytes": moved, "shapes": _shapes(tensors)}
    trace.emit(phase, device, started=started, replica=replica, **facts)


def _name(device: Device) -> str:
    return str(as_device(device))


def _tensors(value: Any, *, dataclasses: bool = True) -> list[Tensor]:
    return list(tree.tensors(value, dataclasses=dataclasses).values())


def _device_of(value: Any) -> str | None:
    """The device of the first tensor in ``value``."""
    return next((str(leaf.device) for _, leaf in tree.leaves(value) if isinstance(leaf, Tensor)), None)


def _shapes(tensors: Iterable[Tensor]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(tensor.shape) for tensor in tensors)


_VERBS: dict[str, Callable[..., Any]] = {
    "data_parallel": _call,
    "scatter": partial(_verb, "scatter", _scatter),
    "scatter_kwargs": partial(_verb, "scatter", _scatter_kwargs),
    "replicate": partial(_verb, "replicate", _replicate),
    "parallel_apply": _parallel_apply,
    "gather": partial(_verb, "gather", _gather),
}
# Collectives with a backward -> phase, whether the backward sends tensors out to the devices.
_COLLECTIVES = {
    "Scatter": ("scatter", False),
    "Gather": ("gather", True),
    "Broadcast": ("replicate", False),
    "ReduceAdd": ("replicate", True),
    "ReduceAddCoalesced": ("replicate", True),
}
_PATCHES = Patches(_table)
