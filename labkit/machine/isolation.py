"""What happens when one operation is given tensors on several devices: the errors CUDA raises.

A call that mixes devices is replayed under a dispatch mode that sees each ATen operator and checks it as
its CUDA wrapper would (see :mod:`.device_checks`), in both forms of PyTorch's message. What CUDA allows (a
0-dim CPU tensor in an elementwise operation, CPU indices, copies) goes through. Only mixed calls pay.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from .device_checks import device_check
from .gpu import Gpu
from .placement import gpu_of, put_all, tensors_in

aten = torch.ops.aten
_COPIES = {
    aten.copy_.default,
    aten._copy_from.default,
    aten.set_.source_Tensor,
    aten.set_.source_Storage,
    aten._has_compatible_shallow_copy_type.default,
}
_INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index", "_unsafe_index_put"}


def run_mixed(mode, func, args, kwargs, tensors: list[Tensor]):
    """Call ``func`` whose tensor arguments are on several devices, as the real machine would."""
    _check_before(func, args, kwargs)
    with _Replay():
        return func(*args, **kwargs)


class _Replay(TorchDispatchMode):
    """Checks and places the operators of one call."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if _is_composite(func):
            with self:
                return func.decompose(*args, **kwargs)
        # A change of dtype or layout inside a composite function stays where its input is.
        home = None if func in _COPIES else check_operator(func, args, kwargs)
        result = func(*args, **kwargs)
        if home is not None:
            put_all(result, home)
        return result


def _is_composite(func) -> bool:
    """Whether ``func`` is made of other operators, each of which is checked by itself."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")


def check_operator(func, args: tuple, kwargs: dict) -> Gpu | None:
    """Raise as CUDA does if ``func`` cannot take tensors from where these are; else the GPU it runs on."""
    name = func.overloadpacket.__name__
    named = _named_tensors(func, args, kwargs)
    gpus = {gpu_of(tensor) for _, tensor in named}
    if len(gpus) <= 1:
        return gpus.pop() if gpus else None
    if name in _INDEXING:
        return _check_indexing(named)
    if name.startswith("_foreach_"):
        return next((gpu for gpu in gpus if gpu is not None), None)
    check, renamed = device_check(func._schema.name.removeprefix("aten::") + _overload(func))
    if check.wrapper is not None:
        common = named[0][1]
        for argument, tensor in named:
            if gpu_of(tensor) is not gpu_of(common):
                raise RuntimeError(
                    "Expected all tensors to be on the same device, but got "
                    f"{renamed.get(argument, argument)} is on {_place(tensor)}, different from other tensors "
                    f"on {_place(common)} (when checking argument in method {check.wrapper})"
                )
    return _check_iterator(named, scalars=check.iterator)


def _check_iterator(named, scalars: bool) -> Gpu:
    """TensorIterator's rule: the first GPU is common; only a 0-dim CPU input may be elsewhere."""
    common = next(tensor for _, tensor in named if gpu_of(tensor) is not None)
    for argument, tensor in named:
        if gpu_of(tensor) is gpu_of(common):
            continue
        written = argument in ("out", "<written>")
        if scalars and not written and tensor.dim() == 0 and gpu_of(tensor) is None:
            continue
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, "
            f"{_place(common)} and {_place(tensor)}!"
        )
    return gpu_of(common)


def _check_indexing(named) -> Gpu | None:
    (_, tensor), *others = named
    home = gpu_of(tensor)
    for argument, other in others:
        at = gpu_of(other)
        if argument == "indices":
            if at is not None and at is not home:
                raise RuntimeError(
                    "indices should be either on cpu or on the same device as the indexed tensor "
                    f"({_place(tensor)})"
                )
        elif at is not home and not (at is None and other.dim() == 0):
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices, "
                f"{_place(tensor)} and {_place(other)}!"
            )
    return home


def _check_before(func, args, kwargs) -> None:
    """Checks that composite functions make before they reach an operator."""
    from .types import type_name  # types is built on the mode, which calls this module

    name = getattr(func, "__name__", "")
    if name in _CONVOLUTIONS and len(args) >= 2:
        for label, other in zip(("weight", "bias"), args[1:3], strict=False):
            if isinstance(other, Tensor) and (gpu_of(other) is None) != (gpu_of(args[0]) is None):
                mine, theirs = type_name(args[0]), type_name(other)
                raise RuntimeError(f"Input type ({mine}) and {label} type ({theirs}) should be the same")
    if name in _RECURRENT:
        _check_recurrent(args)


_CONVOLUTIONS = {f"conv{n}d" for n in (1, 2, 3)} | {f"conv_transpose{n}d" for n in (1, 2, 3)}
_RECURRENT = {"lstm", "gru", "rnn_tanh", "rnn_relu"}


def _check_recurrent(args) -> None:
    data, rest = args[0], list(args[1:])
    packed = (
        rest
        and isinstance(rest[0], Tensor)
        and isinstance(rest[1], (tuple, list, Tensor))
        and (len(rest) > 2 and isinstance(rest[2], (tuple, list)))
    )
    if packed and rest[0].dim() == 1:
        rest = rest[1:]
    hidden, weights = tensors_in(rest[0]), tensors_in(rest[1])
    for label, group in (("hidden", hidden), ("parameter", weights)):
        for tensor in group:
            if gpu_of(tensor) is not gpu_of(data):
                raise RuntimeError(
                    f"Input and {label} tensors are not at the same device, found input tensor at "
                    f"{_place(data)} and {label} tensor at {_place(tensor)}"
                )


def _named_tensors(func, args, kwargs) -> list[tuple[str, Tensor]]:
    """The tensors of a call with their arguments' names: what is written first, then by position."""
    schema = func._schema.arguments
    named, written = [], []
    for at, argument in enumerate(schema):
        value = args[at] if at < len(args) else kwargs.get(argument.name)
        found = [(argument.name, tensor) for tensor in tensors_in(value)]
        if argument.alias_info is not None and argument.alias_info.is_write and argument.is_out:
            written += [("out", tensor) for _, tensor in found]
        else:
            named += found
    return written + named


def _overload(func) -> str:
    return "" if func._overloadname == "default" else f".{func._overloadname}"


def _place(tensor: Tensor) -> str:
    gpu = gpu_of(tensor)
    return str(tensor.device) if gpu is None else str(gpu.device)
