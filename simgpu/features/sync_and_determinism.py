"""Report nondeterministic operators, and waits for a GPU, on request.

``torch.use_deterministic_algorithms`` or a function in ``hooks.is_followed`` replaces the mode's answer, so that other
programs pay nothing. Then each call on a GPU, and each backward, runs under
a dispatch mode that sees its operators.

The operators are facts of ``aten/src/ATen/native/cuda`` (2.12): the calls of ``alertNotDeterministic``, and those
that copy a number to the host (``item``, ``memcpy_and_sync``). For some (``put_``, ``max_unpool``) the CPU's kernels
raise in the same words.
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
# Functions that copy values to the host unseen by dispatch modes (torch/csrc/utils/tensor_list.cpp, tensor_numpy.cpp;
# torch/_tensor_str.py takes the modes off).
_READ_ON_HOST = frozenset((Tensor.tolist, Tensor.numpy, Tensor.__repr__))
_functional = torch.nn.functional


def _wait(machine: TheMachine) -> None:
    for waited in hooks.host_waited:
        waited(machine)


def _body(function: Any) -> Callable[..., Any]:
    """Copy a Python function of torch without its call of function modes; functions called inside still call them."""
    around = function.__globals__ | {"has_torch_function_unary": lambda *_: False}
    return types.FunctionType(function.__code__, around, function.__name__, function.__defaults__)


# Functions with a deterministic path for CUDA tensors, in Python.
_ORDERED = {
    _functional.interpolate: _body(_functional.interpolate),
    _functional.pad: _body(_functional.pad),
    _functional.max_pool3d_with_indices: _body(_functional.max_pool3d_with_indices),
}


def _call_watched(mode: MachineMode, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    """Answer as ``mode`` does, under a :class:`_Watch`."""
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
    """Return a context manager for a backward pass from ``outputs``."""
    on_gpus = any(isinstance(output, Tensor) and gpu_of(output) is not None for output in outputs)
    if not on_gpus or not _is_asked_for(machine) or getattr(_here, "watched", False):
        return nullcontext()
    return _Watch(machine)


class _Watch(OperatorMode):
    """Dispatch mode to report the operators of a call or a backward pass."""

    def __init__(self, machine: TheMachine, on_host: set[int] | None = None) -> None:
        self._machine = machine
        self._on_host = on_host or set()  # ids of the call's tensors on the host, to read without waiting

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
        with without_modes():  # the machine's mode is on while the engine runs
            return func(*args, **kwargs)


# It calls the followers in any case: stopping must not need more of Python's stack than starting.
def _is_asked_for(machine: TheMachine) -> bool:
    wanted = torch.are_deterministic_algorithms_enabled()
    return any([wanted, *(follows(machine) for follows in hooks.is_followed)])


@hooks.machine_opened.add
def _settle(machine: TheMachine) -> None:
    """Start or stop watching, as requested."""
    if not machine.closed:
        machine.mode.answer_by(_call_watched if _is_asked_for(machine) else None)


@replaces(torch._C, "_set_deterministic_algorithms")
def _set_deterministic(machine: TheMachine, real: Any, *args: Any, **kwargs: Any) -> None:
    real(*args, **kwargs)
    _settle(machine)


_ROWS = {kind: names.split() for kind, names in rows_beside(__file__)}
# Operators never deterministic on CUDA, with the names in the error.
_UNORDERED = {
    name: f"{name.strip('_')}_{added}" for added in ("cuda", "out_cuda", "gpu") for name in _ROWS[added]
}
# Operators that are nondeterministic for some calls: the name in the error, and a function of the overload's name and
# the arguments by name.
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
    # TensorAdvancedIndexing.cpp, scatter_impl: sums of floats use index_put, which is deterministic.
    reduce, source = given.get("reduce"), given.get("src")
    if reduce is None or not isinstance(source, Tensor):
        return False
    return reduce == "multiply" or not (given["self"].is_floating_point() or given["self"].is_complex())


def nondeterministic_name(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """Return the name in CUDA's error if this call of an OpOverload is nondeterministic; else None."""
    name = func.overloadpacket.__name__
    always = _UNORDERED.get(name)
    if always is not None or name not in _SOMETIMES:
        return always
    text, objects = _SOMETIMES[name]
    given = {a.name: args[at] for at, a in enumerate(func._schema.arguments) if at < len(args)} | kwargs
    return text if objects(func._overloadname, given) else None


def objection(caller: str, warn_only: bool) -> str:
    """Return PyTorch's message (``aten/src/ATen/Context.cpp``, ``alertNotDeterministic``)."""
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

    on_host    the ids of the caller's tensors on the host, which can be read without waiting
    """
    if args and id(args[0]) in on_host:
        return False
    name = func.overloadpacket.__name__
    if name in _ROWS["waits"]:  # the host reads a number of results, a shape or a decision
        return True
    if name in _ROWS["indexes"]:
        # The host waits for the number of True in a mask, unless it fills in a single value of the host. Indices are
        # copied to the GPU without waiting (TensorAdvancedIndexing.cpp, canDispatchToMaskedFill; IndexingUtils.h,
        # expandTensors).
        indices = args[1] if len(args) > 1 else kwargs.get("indices", ())
        value = args[2] if len(args) > 2 else None
        masks = [isinstance(index, Tensor) and index.dtype in _MASKS for index in indices]
        if isinstance(value, Tensor) and value.numel() == 1 and gpu_of(value) is None:
            return False
        return any(mask and id(index) not in on_host for mask, index in zip(masks, indices, strict=True))
    if name == "repeat_interleave":
        return kwargs.get("output_size") is None
    return name in ("masked_fill", "masked_fill_") and func._overloadname == "Tensor"
