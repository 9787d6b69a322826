"""Tensors without data: they have a size and a device, and operators on them compute nothing.

In a :class:`DatalessMode`, an operator on large tensors makes its results without computing them. Their shapes come
from its meta kernel; their memory is never written, so the system provides no pages. So a model larger than the
computer runs, and every byte is counted on its GPU, operator by operator, in backward too. Small tensors are computed,
so that counters, seeds and losses have values.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from labkit.base.tree import tensors_in

from ..stack import OperatorMode
from ..state import host
from ..state.current_machine import work
from ..state.gpu import Gpu
from ..state.placement import gpu_of, put, put_wrapper

# The most elements of a computed tensor, on a GPU and on the host. Data on the host may steer the script, and so may
# indices and masks on a GPU.
_MOST_COMPUTED_ON_GPU, _MOST_COMPUTED_ON_HOST = 4096, 4 * 2**20
_STEERING = frozenset({torch.int64, torch.int32, torch.bool})
# Operators that choose among numbers -> the position of the indices in the results.
_CHOICES = {"argmax": 0, "argmin": 0, "multinomial": 0, "max": 1, "min": 1, "topk": 1, "sort": 1}
# Namespaces of operators that move tensors between ranks.
_MOVING = frozenset({"c10d", "_c10d_functional", "c10d_functional"})
# Operators on storages, not values.
_OF_STORAGES = frozenset({"aten::set_", "aten::resize_", "aten::resize_as_"})
_TO_COPY = torch.ops.aten._to_copy.default
# Allocations of at least this size use mmap, so that pages without data cost nothing (option of glibc's mallopt).
_M_MMAP_THRESHOLD, _MMAP_BYTES = -3, 64 * 1024

Watcher = Callable[[Any, Any, Any, Any, Gpu], None]


class _Operator:
    """Facts from an operator's schema: written arguments, and kinds of results.

    moves     it moves tensors between ranks, or changes storages.
    gathers   it is FSDP2's, which copies shards into the output of all-gather.
    view      it returns views of its arguments.
    plain     it returns no tensors and writes none.
    returns   for each result, (name, position) of the argument that is returned; None for a new tensor.
    new       some result is a new tensor.
    """

    def __init__(self, func: Any) -> None:
        schema = func._schema
        self.moves = func.namespace in _MOVING or schema.name in _OF_STORAGES
        self.gathers = schema.name == "fsdp::all_gather_copy_in"
        returned = [one.alias_info for one in schema.returns]
        written = [a for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]
        self.view = not written and any(info is not None for info in returned)
        self.plain = not any("Tensor" in str(one.type) for one in schema.returns) and not written
        at = {name: place for place, name in enumerate(a.name for a in schema.arguments)}
        sets = {frozenset(a.alias_info.before_set): (a.name, at[a.name]) for a in written}
        self.returns = [None if info is None else sets.get(frozenset(info.before_set)) for info in returned]
        self.new = None in self.returns


_operators: dict[Any, _Operator] = {}
# (operator, sizes of the arguments) -> sizes, strides and dtypes of the results.
_shapes: dict[Any, Any] = {}


class WatchingMode(OperatorMode):
    """Dispatch mode that assigns each operator's results to their GPU at once, and reports the operators on GPUs.

    watcher   called for each operator on a GPU: ``(func, args, kwargs, results, gpu)``.
    """

    def __init__(self, watcher: Watcher | None = None) -> None:
        super().__init__()
        self.watcher = watcher

    def operator(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        facts = _operators.get(func)
        if facts is None:
            facts = _operators[func] = _Operator(func)
        with torch._C.DisableTorchFunction():
            if facts.plain or facts.view:
                return func(*args, **kwargs)
            if facts.moves:
                gpu, results = self._home(func, tensors_in(args, kwargs)), func(*args, **kwargs)
                if gpu is not None:
                    for made in tensors_in(results):
                        # A wrapper may have been made before its inner tensor was put on a GPU.
                        assign = put_wrapper if is_traceable_wrapper_subclass(made) else put
                        assign(made, gpu)
                return results
            if facts.gathers:
                return self._gather(func, args, kwargs)
            tensors = tensors_in(args, kwargs)
            gpu = self._home(func, tensors)
            results = self._make(func, facts, args, kwargs, tensors, gpu)
            if gpu is not None:
                if facts.new:
                    for made in tensors_in(results):
                        put(made, gpu)
                if self.watcher is not None:
                    self.watcher(func, args, kwargs, results, gpu)
            return results

    def _gather(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run FSDP2's operator, which copies shards into the output of all-gather, and returns both."""
        return func(*args, **kwargs)

    @staticmethod
    def _home(func: Any, tensors: list[Tensor]) -> Gpu | None:
        """Return the GPU of the operator's results."""
        if func is _TO_COPY and work.whole and work.gpu is None and not work.engine:
            return None  # `.to("cpu")` called from Python
        return work.gpu or next(filter(None, map(gpu_of, tensors)), None)

    def _make(
        self, func: Any, facts: _Operator, args: Any, kwargs: Any, tensors: list[Tensor], gpu: Gpu | None
    ) -> Any:
        return func(*args, **kwargs)


class DatalessMode(WatchingMode):
    """Dispatch mode under which large tensors have no values.

    has_chosen   whether an operator has chosen among numbers (as a router among experts); its result was replaced by an
                 even choice.
    """

    has_chosen = False

    def _gather(self, func: Any, args: Any, kwargs: Any) -> Any:
        _, output, _, numel, rank, *_ = args  # inputs, output, split sizes, elements of a shard, rank
        return output.narrow(0, numel * rank, numel), output

    def _make(
        self, func: Any, facts: _Operator, args: Any, kwargs: Any, tensors: list[Tensor], gpu: Gpu | None
    ) -> Any:
        results = self._make_dataless(func, facts, args, kwargs, tensors, gpu)
        if gpu is not None and func.namespace == "aten":
            self.has_chosen = _choose_equally(func, args, kwargs, results) or self.has_chosen
        return results

    def _make_dataless(
        self, func: Any, facts: _Operator, args: Any, kwargs: Any, tensors: list[Tensor], gpu: Gpu | None
    ) -> Any:
        def is_small(numel: int, dtype: torch.dtype) -> bool:
            return numel <= (
                _MOST_COMPUTED_ON_HOST if gpu is None or dtype in _STEERING else _MOST_COMPUTED_ON_GPU
            )

        if any(tensor.is_meta or tensor.layout is not torch.strided for tensor in tensors):
            return func(*args, **kwargs)
        if tensors and all(is_small(tensor.numel(), tensor.dtype) for tensor in tensors):
            with suppress(IndexError, RuntimeError):  # tensors without data give wrong indices
                if (
                    func is torch.ops.aten.histc.default
                ):  # torchtitan counts tokens so; the CPU has no integers here
                    return func(args[0].double(), *args[1:], **kwargs).to(args[0].dtype)
                return func(*args, **kwargs)
        made = _sizes(func, args, kwargs)
        if made is None or (
            not tensors and all(not isinstance(spec, tuple) or is_small(spec[3], spec[2]) for spec in made)
        ):
            return func(*args, **kwargs)
        results = [
            (kwargs[given[0]] if given[0] in kwargs else args[given[1]]) if given else _empty(spec)
            for given, spec in zip(facts.returns, made, strict=True)
        ]
        return results[0] if len(results) == 1 else tuple(results) if results else None


def _choose_equally(func: Any, args: Any, kwargs: Any, results: Any) -> bool:
    """Let an operator that chooses among numbers choose each in turn; return whether it is such an operator.

    The numbers have no values, and a router must not send all tokens to the first expert.
    """
    at = _CHOICES.get(func._schema.name.removeprefix("aten::"))
    if at is None or not args[0].is_floating_point():
        return False
    if at and not isinstance(results, tuple):
        return False  # max and min without a dimension return no indices
    names = [one.name for one in func._schema.arguments]
    given = dict(zip(names, args, strict=False)) | kwargs
    dim = given.get("dim", None if func._schema.name.startswith("aten::arg") else -1)
    among = args[0].numel() if dim is None or not args[0].dim() else args[0].shape[dim]
    index = results[at] if at else results
    if among and index.numel() <= _MOST_COMPUTED_ON_HOST:
        index.copy_(torch.arange(index.numel()).remainder_(among).view(index.shape))
    return True


def _empty(spec: Any) -> Any:
    if not isinstance(spec, tuple):
        return spec  # no tensor
    size, stride, dtype, _ = spec
    if dtype is None:
        return [_empty(one) for one in size]
    made = torch.empty_strided(size, stride, dtype=dtype)
    # A smaller block may be a used one, with old values.
    return made.zero_() if made.untyped_storage().nbytes() < _MMAP_BYTES else made


def _sizes(func: Any, args: Any, kwargs: Any) -> Any:
    """Return (size, stride, dtype, elements) or None for each result of ``func``; None if unknown."""
    key: Any = None
    with suppress(TypeError):
        key = func, _key(args), _key(tuple(kwargs.items()))
        if key in _shapes:
            return _shapes[key]
    try:
        result = func(*_on_meta(args), **_on_meta(kwargs))
    except Exception:  # the operator needs the values
        made = None
    else:
        results = list(result) if isinstance(result, tuple) else [result]
        if len(func._schema.returns) == 0:
            results = []
        elif len(func._schema.returns) == 1 and isinstance(result, (list, tuple)):
            results = [list(result)]
        made = [_spec(one) for one in results]
    if key is not None:
        _shapes[key] = made
    return made


def _spec(value: Any) -> Any:
    if isinstance(value, list):
        made = list(map(_spec, value))
        return made, None, None, max((one[3] for one in made if one), default=0)
    return (value.shape, value.stride(), value.dtype, value.numel()) if isinstance(value, Tensor) else value


def _key(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.shape, value.stride(), value.dtype
    if isinstance(value, (list, tuple)):
        return tuple(map(_key, value))
    return value.__class__, value


def _on_meta(value: Any) -> Any:
    if isinstance(value, Tensor):
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    if isinstance(value, dict):
        return {name: "meta" if name == "device" else _on_meta(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map(_on_meta, value))
    return None if isinstance(value, torch.Generator) else value


@contextmanager
def fresh_memory() -> Iterator[None]:
    """Give large tensors unwritten memory in a ``with`` block, without checking the computer's memory."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)
    with host.skip_memory_check():
        yield
