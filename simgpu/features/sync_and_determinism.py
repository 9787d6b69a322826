"""The machine's mode tells of operators without a fixed order, and of waiting for a GPU, while someone asks for it.

``torch.use_deterministic_algorithms`` lets the mode answer by another function, so that it costs nothing while it is
off. While it is on, each call on a GPU runs under a dispatch mode that sees its operators, and so does each backward.

The operators are facts of ``aten/src/ATen/native/cuda`` (2.12): the calls of ``alertNotDeterministic``, and what copies
a number to the host (``item``, ``memcpy_and_sync``). The CPU tells of its own share (``put_``, ``max_unpool``) in the
same words.
"""

from __future__ import annotations

import threading
import types
import warnings
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from labkit.base.files import rows_beside
from labkit.base.tree import tensors_in

from .. import hooks
from ..handlers import HANDLERS
from ..ops.mode import MachineMode
from ..stack import OperatorMode, without_modes
from ..state.current_machine import replaces
from ..state.gpu import TheMachine
from ..state.placement import gpu_of

_here = threading.local()
# These bring values to the host where no dispatch mode looks (torch/csrc/utils/tensor_list.cpp, tensor_numpy.cpp;
# torch/_tensor_str.py takes the modes off).
_READ_ON_HOST = frozenset((Tensor.tolist, Tensor.numpy, Tensor.__repr__))
_functional = torch.nn.functional


def _wait(machine: TheMachine) -> None:
    for waited in hooks.host_waited:
        waited(machine)


def _body(function: Any) -> Callable[..., Any]:
    """A copy of a function of torch's Python that does not ask the function modes; the functions that it calls do."""
    around = function.__globals__ | {"has_torch_function_unary": lambda *_: False}
    return types.FunctionType(function.__code__, around, function.__name__, function.__defaults__)


# These take another way for a CUDA tensor when they are to be deterministic, which has an order.
_ORDERED = {
    _functional.interpolate: _body(_functional.interpolate),
    _functional.pad: _body(_functional.pad),
    _functional.max_pool3d_with_indices: _body(_functional.max_pool3d_with_indices),
}


def _call_watched(mode: MachineMode, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    """Answer as ``mode`` does, and tell of the call."""
    plain = MachineMode.__torch_function__
    tensors = () if HANDLERS.get(func, func) is None else tensors_in(args, kwargs)
    if getattr(_here, "watched", False) or not any(gpu_of(tensor) is not None for tensor in tensors):
        return plain(mode, func, types, args, kwargs)
    if func in _ORDERED and torch.are_deterministic_algorithms_enabled():
        with mode.machine.use_in_thread():
            return _ORDERED[func](*args, **(kwargs or {}))
    if func in _READ_ON_HOST:
        _wait(mode.machine)
    with _Watch(mode.machine, {id(tensor) for tensor in tensors if gpu_of(tensor) is None}):
        return plain(mode, func, types, args, kwargs)


@hooks.backward_contexts.add
def _watched_backward(machine: TheMachine, outputs: Any) -> AbstractContextManager[Any]:
    """Context manager for the engine, which runs from these ``outputs`` on."""
    on_gpus = any(isinstance(output, Tensor) and gpu_of(output) is not None for output in outputs)
    if not on_gpus or not _is_asked_for(machine) or getattr(_here, "watched", False):
        return nullcontext()
    return _Watch(machine)


class _Watch(OperatorMode):
    """Tells of the operators of one call, or one backward."""

    def __init__(self, machine: TheMachine, on_host: set[int] | None = None) -> None:
        self._machine = machine
        self._on_host = on_host or set()  # the call's tensors that are: to read from them is no waiting

    def __enter__(self) -> Any:
        super().__enter__()
        _here.watched = True
        return self

    def __exit__(self, *exc_info: Any) -> None:
        _here.watched = False
        super().__exit__(*exc_info)

    def operator(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if torch.are_deterministic_algorithms_enabled():
            caller = nondeterministic_name(func, args, kwargs)
            if caller is not None:
                warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
                if not warn_only:
                    raise RuntimeError(objection(caller, warn_only))
                warnings.warn(objection(caller, warn_only), stacklevel=1)
        if hooks.host_waited and waits(func, args, kwargs, self._on_host):
            _wait(self._machine)
        for ran in hooks.operator_ran:
            ran(self._machine)
        with without_modes():  # the engine runs with the machine in sight
            return func(*args, **kwargs)


def _is_asked_for(machine: TheMachine) -> bool:
    # Whoever follows is asked in any case: to stop must not take more of Python's stack than to begin.
    followed = any(follows(machine) for follows in hooks.is_followed)
    return followed or torch.are_deterministic_algorithms_enabled()


@hooks.machine_opened.add
def _settle(machine: TheMachine) -> None:
    """Watch, or stop watching, as is asked for now."""
    if not machine.closed:
        machine.mode.answer_by(_call_watched if _is_asked_for(machine) else None)


@replaces(torch._C, "_set_deterministic_algorithms")
def _set_deterministic(machine: TheMachine, real: Any, *args: Any, **kwargs: Any) -> None:
    real(*args, **kwargs)
    _settle(machine)


_ROWS = {kind: names.split() for kind, names in rows_beside(__file__)}
# The operators to which CUDA always objects, with what it adds to their names.
_UNORDERED = {
    name: f"{name.strip('_')}_{added}" for added in ("cuda", "out_cuda", "gpu") for name in _ROWS[added]
}
# These object to some calls only. Each function is given the overload's name and the arguments by name.
_SOMETIMES: dict[str, tuple[str, Callable[[str, dict[str, Any]], bool]]] = {
    "histc": ("_histc_cuda with floating point input", lambda _, given: given["self"].is_floating_point()),
    "bincount": ("_bincount_cuda", lambda _, given: given.get("weights") is not None),
    "put_": ("put_", lambda _, given: bool(given.get("accumulate"))),
    "put": ("put_", lambda _, given: bool(given.get("accumulate"))),
    "median": ("median CUDA with indices output", lambda overload, _: overload.startswith("dim")),
    "nanmedian": ("median CUDA with indices output", lambda overload, _: overload.startswith("dim")),
    "nll_loss2d_forward": ("nll_loss2d_forward_out_cuda_template", lambda _, given: given["reduction"] != 0),
    "scatter_reduce": ("scatter_reduce_cuda_prod_", lambda _, given: given["reduce"] == "prod"),
    "scatter_reduce_": ("scatter_reduce_cuda_prod_", lambda _, given: given["reduce"] == "prod"),
    "scatter": ("scatter_reduce_cuda_kernel", lambda _, given: _scatters_with(given)),
    "scatter_": ("scatter_reduce_cuda_kernel", lambda _, given: _scatters_with(given)),
    "_embedding_bag_backward": ("embedding_bag_backward_cuda_max", lambda _, given: given["mode"] == 2),
    "_embedding_bag_dense_backward": ("embedding_bag_backward_cuda_max", lambda _, given: given["mode"] == 2),
}


def _scatters_with(given: dict[str, Any]) -> bool:
    # TensorAdvancedIndexing.cpp, scatter_impl: a sum of floats goes by index_put, which has an order.
    reduce, source = given.get("reduce"), given.get("src")
    if reduce is None or not isinstance(source, Tensor):
        return False
    return reduce == "multiply" or not (given["self"].is_floating_point() or given["self"].is_complex())


def nondeterministic_name(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """The name by which CUDA objects to this OpOverload when it is to be deterministic; None if it does not."""
    name = func.overloadpacket.__name__
    always = _UNORDERED.get(name)
    if always is not None or name not in _SOMETIMES:
        return always
    text, objects = _SOMETIMES[name]
    given = {a.name: args[at] for at, a in enumerate(func._schema.arguments) if at < len(args)} | kwargs
    return text if objects(func._overloadname, given) else None


def objection(caller: str, warn_only: bool) -> str:
    """PyTorch's words (``aten/src/ATen/Context.cpp``, ``alertNotDeterministic``)."""
    option, way = ", warn_only=True", "file"
    if not warn_only:
        option, way = (
            "",
            "turn off determinism just for this operation, or you can use the 'warn_only=True' option, ",
        )
        way += "if that's acceptable for your application. You can also file"
    return (
        f"{caller} does not have a deterministic implementation, but you set "
        f"'torch.use_deterministic_algorithms(True{option})'. You can {way} an issue at "
        "https://github.com/pytorch/pytorch/issues to help us prioritize adding deterministic support for this "
        "operation."
    )


_MASKS = (torch.bool, torch.uint8)


def waits(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], on_host: Collection[int]) -> bool:
    """Whether the host waits for the GPU in this operator (an OpOverload).

    on_host    the ids of the caller's tensors that are not on a GPU: to read from them is no waiting
    """
    if args and id(args[0]) in on_host:
        return False
    name = func.overloadpacket.__name__
    if name in _ROWS["waits"]:  # the host reads a number of results, a shape or a decision
        return True
    if name in _ROWS["indexes"]:
        # A mask is turned into indices, as many as it has truths, but for one value of the host's; indices are
        # copied to the GPU, those from a mask without waiting (TensorAdvancedIndexing.cpp, canDispatchToMaskedFill;
        # IndexingUtils.h, expandTensors).
        indices = args[1] if len(args) > 1 else kwargs.get("indices", ())
        value = args[2] if len(args) > 2 else None
        masks = [isinstance(index, Tensor) and index.dtype in _MASKS for index in indices]
        if isinstance(value, Tensor) and value.numel() == 1 and gpu_of(value) is None:
            return False
        return any(mask and id(index) not in on_host for mask, index in zip(masks, indices, strict=True))
    if name == "repeat_interleave":
        return kwargs.get("output_size") is None
    return name in ("masked_fill", "masked_fill_") and func._overloadname == "Tensor"
