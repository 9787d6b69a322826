"""``DTensor`` on simulated GPUs: the wrapper and its local tensor are on the rank's GPU.

C++ runs the operators on local tensors and wraps the results (torch/csrc/autograd/python_variable.cpp,
dispatchDTensorOp). So a local result has no mark when it comes to ``DTensor.__new__``. Its GPU is that of the running
call or, in backward, the thread's current GPU, which is the rank's.

Random numbers differ between shards and agree between copies, and afterwards all ranks' generators have one state.
PyTorch uses offsets of CUDA's generator: each shard draws from its own, and all ranks end after the whole tensor
(torch/distributed/tensor/_random.py). For simulated GPUs each offset names a separate stream (:mod:`..state.random`).
So a replicated tensor gets the numbers of one GPU, and a sharded one other numbers than on CUDA.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor

from labkit.base.patches import Patch

from .. import hooks
from ..stack import fake_mode
from ..state.current_machine import call_with_machine, machine_in_use, require_machine, work
from ..state.gpu import TheMachine
from ..state.placement import gpu_of, is_kept, keep_on_host, put, put_wrapper
from ..state.random import RealGenerator, stream_state


class _Answers(dict[Any, Any]):
    """Operator -> the function that C++ calls instead, with the machine's mode on."""

    def __init__(self, answers: dict[Any, Any]) -> None:
        super().__init__(
            {operator: partial(call_with_machine, answer) for operator, answer in answers.items()}
        )

    def update(self, answers: Any) -> None:  # type: ignore[override]  # the one form in which torch calls it
        super().update(_Answers(answers))


def _answers(dispatcher: Any) -> _Answers:
    """Return the operators answered in Python, also loss_parallel's (torch/distributed/tensor/parallel/loss.py)."""
    found = vars(dispatcher)["_custom_op_handlers"]
    if found.__class__ is not _Answers:
        _answer_by(dispatcher, _Answers(found))
        return _answers(dispatcher)
    return found


def _answer_by(dispatcher: Any, answers: dict[Any, Any]) -> None:
    vars(dispatcher)["_custom_op_handlers"] = answers


@hooks.patches.add
def patches(machine: TheMachine) -> Iterator[Patch]:
    """Patch the constructors of DTensor, and DTensor's Python called by C++."""
    if not hasattr(Tensor, "_dtensor__new__"):
        return  # a build without torch.distributed
    yield Patch.wrap(Tensor, "_dtensor__new__", _new)
    loaded: Any = sys.modules.get("torch.distributed.tensor")
    if loaded is not None:
        yield Patch.wrap(loaded.DTensor, "__new__", _new)
        yield from _rows(loaded.DTensor)


@hooks.class_made.add
def class_made(kind: Any) -> None:
    """Patch DTensor when a script imports it while the machine is in use.

    The class has taken our ``_dtensor__new__``, so the patches stay. They do nothing without a machine.
    """
    if (kind.__module__, kind.__name__) == ("torch.distributed.tensor._api", "DTensor"):
        for owner, name, value in _rows(kind):
            setattr(owner, name, value)


def _rows(kind: Any) -> Iterator[Patch]:
    dispatcher: Any = type(kind._op_dispatcher)
    yield Patch.wrap(dispatcher, "redistribute_local_args", call_with_machine)
    tail = "_dispatch_fast_path_python_tail"
    if hasattr(dispatcher, tail):
        # Combines the ranks' results of operators that return numbers (torch.equal).
        yield Patch.wrap(dispatcher, tail, call_with_machine)
    yield Patch(dispatcher, "_custom_op_handlers", property(_answers, _answer_by))
    yield from _patch_random_numbers()
    schemas: Any = sys.modules["torch.distributed.tensor._op_schema"]
    yield Patch(schemas, "_rebuild_tensor_from_dtensor_meta", _shape_of)
    propagator: Any = sys.modules["torch.distributed.tensor._sharding_prop"].ShardingPropagator
    yield Patch.wrap(propagator, "_propagate_tensor_meta_non_cached", _find_shapes)


# What an operator with arguments of these shapes returns, for all ranks: torch keeps it for each thread alone, and each
# question makes a FakeTensorMode.
_found_shapes: dict[Any, Any] = {}
_MOST_SHAPES = 2**14


def _find_shapes(find: Callable[..., Any], propagator: Any, schema: Any) -> Any:
    if torch.compiler.is_compiling() or fake_mode() is not None:
        return find(propagator, schema)  # sizes may be symbols
    key = schema.op, torch.get_default_dtype(), _shape_key((schema.args_schema, schema.kwargs_schema))
    try:
        known = key in _found_shapes
    except TypeError:  # an argument without a hash
        return find(propagator, schema)
    if not known:
        if len(_found_shapes) >= _MOST_SHAPES:
            _found_shapes.clear()
        _found_shapes[key] = find(propagator, schema)
    return _found_shapes[key]


def _shape_key(value: Any) -> Any:
    """Return what a result's shape depends on in an argument; numbers of other types give other dtypes."""
    if isinstance(value, (list, tuple)):
        return value.__class__, *map(_shape_key, value)
    if isinstance(value, dict):
        return *value, *map(_shape_key, value.values())
    return value.__class__, getattr(value, "tensor_meta", value)


def _shape_of(spec: Any) -> Tensor:
    """Return a fake tensor in place of a DTensor, for the shapes of results.

    The tensor is on the host: for one on a GPU, some decompositions need C++'s guard of CUDA, which a CPU build lacks.
    """
    meta = spec.tensor_meta
    assert meta is not None
    device = spec.mesh.device_type if machine_in_use() is None else "cpu"
    return torch.empty_strided(meta.shape, meta.stride, dtype=meta.dtype, device=device)


def _new(make: Callable[..., Any], cls: type, local_tensor: Tensor, spec: Any, **options: Any) -> Any:
    made = make(cls, local_tensor, spec, **options)
    machine = machine_in_use()
    meta = local_tensor.device.type == "meta"
    if machine is not None and machine.gpus and spec.mesh.device_type == "cuda" and not meta:
        # Offloaded shards stay on the host, and so do the results of their operators.
        offloaded = is_kept(local_tensor) or (work.whole and work.gpu is None and not work.engine)
        gpu = gpu_of(local_tensor) or (None if offloaded else work.gpu or machine.gpu(None))
        if gpu is not None:
            put(local_tensor, gpu)
            put_wrapper(made, gpu)
        else:
            keep_on_host(local_tensor)
    return made


@contextmanager
def draw_from_offset(start: int, end: int, given: Any = None) -> Iterator[None]:
    """Let the current GPU draw from the stream of offset ``start`` in a ``with`` block, and go on with that of ``end``.

    given   the user's generator, instead of the GPU's.
    """
    own, drawing = _generators()
    source = drawing if given is None else given
    state = RealGenerator.get_state(source)
    before = {generator: RealGenerator.get_state(generator) for generator in {own, drawing}}
    for generator in before:
        RealGenerator.set_state(generator, stream_state(state, start))
    try:
        yield
    finally:
        for generator, saved in before.items():
            RealGenerator.set_state(generator, saved)
        RealGenerator.set_state(source, stream_state(state, end))


def _generators() -> tuple[Any, Any]:
    """Return the current GPU's generator, and the generator drawing for the GPU now."""
    machine = require_machine()
    gpu = machine.gpu(None)
    return machine.random.generators[gpu.index], machine.random.drawing_generator(gpu)


@functools.cache
def _tracker(base: Any) -> Any:
    """Return the replacement of ``base``, OffsetBasedRNGTracker."""

    class Tracker(base):  # type: ignore[misc]
        def __init__(self, mesh: Any, run_state_sync: bool = True) -> None:
            call_with_machine(super().__init__, mesh, run_state_sync)

        def _get_device_state(self) -> Tensor:
            return RealGenerator.get_state(_generators()[1]).to(self._device)

        def _set_device_state(self, state: Tensor) -> None:
            RealGenerator.set_state(_generators()[1], state.to("cpu"))

        def _distribute_region(self, spec: Any, generator: Any = None) -> AbstractContextManager[None]:
            if not self.distribute_region_enabled:
                return nullcontext()
            start, end = self._compute_rng_offsets(spec)
            return draw_from_offset(start, end, generator)

    return Tracker


def _patch_random_numbers() -> Iterator[Patch]:
    """Patch the tracker of DTensor's offsets, and the operator using the offsets."""
    tracker: Any = sys.modules["torch.distributed.tensor._random"].OffsetBasedRNGTracker

    def new(cls: Any, mesh: Any, *_: Any, **__: Any) -> Any:
        simulated = machine_in_use() is not None and mesh.device_type == "cuda"
        return object.__new__(_tracker(cls) if simulated and cls is tracker else cls)

    yield Patch(tracker, "__new__", staticmethod(new))
    dispatch: Any = importlib.import_module("torch.distributed.tensor._dispatch")

    def run_apart(real: Any, start: int, end: int, operator: Any, *args: Any, **kwargs: Any) -> Any:
        if machine_in_use() is None:
            return real(start, end, operator, *args, **kwargs)
        with draw_from_offset(start, end):
            return operator(*args, **kwargs)

    if hasattr(dispatch, "run_dtensor_rng_op"):  # from torch 2.13 on
        yield Patch.wrap(dispatch, "run_dtensor_rng_op", run_apart)
