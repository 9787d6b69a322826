"""scatter and gather: the inputs cut over devices, the outputs put together again.

:class:`Scatter` and :class:`Gather` are each other's backward.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.autograd import Function

from .devices import as_device, as_devices


class Scatter(Function):
    """``tensor`` cut along ``dim`` as torch.chunk cuts it (or into ``sizes``), one piece for each device.

    With fewer pieces than devices the last devices get none. A piece that is on its device already is a
    view of the input.
    """

    @staticmethod
    def forward(ctx, devices: list[torch.device], sizes, dim: int, tensor: Tensor) -> tuple[Tensor, ...]:
        ctx.dim, ctx.home = dim, tensor.device
        pieces = tensor.chunk(len(devices), dim) if sizes is None else tensor.split(sizes, dim)
        return tuple(piece.to(device) for piece, device in zip(pieces, devices, strict=False))

    @staticmethod
    def backward(ctx, *grads: Tensor):
        return None, None, None, Gather.apply(ctx.home, ctx.dim, *grads)


class Gather(Function):
    """``tensors`` from several devices, concatenated along ``dim`` on ``device``. Scalars become a vector."""

    @staticmethod
    def forward(ctx, device: torch.device, dim: int, *tensors: Tensor) -> Tensor:
        ctx.dim, ctx.devices = dim, [tensor.device for tensor in tensors]
        ctx.scalars = dim == 0 and all(tensor.dim() == 0 for tensor in tensors)
        if ctx.scalars:
            warnings.warn(
                "Was asked to gather along dimension 0, but all input tensors were scalars; "
                "will instead unsqueeze and return a vector.",
                stacklevel=2,
            )
            tensors = tuple(tensor.view(1) for tensor in tensors)
        ctx.sizes = [tensor.size(dim) for tensor in tensors]
        return torch.cat([tensor.to(device) for tensor in tensors], dim)

    @staticmethod
    def backward(ctx, grad: Tensor):
        grads = Scatter.apply(ctx.devices, ctx.sizes, ctx.dim, grad)
        return None, None, *((piece[0] for piece in grads) if ctx.scalars else grads)


def scatter(inputs, target_gpus: Sequence, dim: int = 0):
    """``inputs`` once for each device: tensors are cut, containers walked, other objects shared.

    A tensor gives a tuple of pieces; anything else a list. With fewer rows than devices there are fewer
    entries than devices.
    """
    return _scatter(inputs, as_devices(target_gpus, "target_gpus"), dim)


def _scatter(value, devices: list[torch.device], dim: int):
    if isinstance(value, Tensor):
        return Scatter.apply(devices, None, dim, value)
    if isinstance(value, (tuple, list, dict)) and value:
        items = list(value.items()) if isinstance(value, dict) else value
        rows = zip(*(_scatter(item, devices, dim) for item in items), strict=False)
        if isinstance(value, tuple):
            return [type(value)(*row) if hasattr(value, "_fields") else tuple(row) for row in rows]
        return [type(value)(row) if isinstance(value, dict) else list(row) for row in rows]
    return [value for _ in devices]


def scatter_kwargs(inputs: tuple, kwargs: dict | None, target_gpus: Sequence, dim: int = 0):
    """Positional and keyword inputs for each device: two tuples of equal length.

    Raises ValueError, naming the arguments, where tensors would be cut into different numbers of pieces:
    PyTorch drops rows there without a word, or fails later without a name.
    """
    devices = as_devices(target_gpus, "target_gpus")
    count = _pieces(inputs, kwargs or {}, len(devices), dim)
    devices = devices[:count]
    positional = _scatter(tuple(inputs), devices, dim) if inputs else [()] * count
    keyword = _scatter(dict(kwargs), devices, dim) if kwargs else [{}] * count
    return tuple(positional), tuple(keyword)


def _pieces(inputs: tuple, kwargs: dict, devices: int, dim: int) -> int:
    """Into how many pieces the inputs are cut: the number of replicas that get work."""
    found: dict[str, tuple[int, Tensor]] = {}
    lists: dict[str, list] = {}
    named = [(f"input {at}", value) for at, value in enumerate(inputs)]
    named += [(f"keyword argument {name!r}", value) for name, value in kwargs.items()]
    for name, value in named:
        for path, tensor in _tensors(value, name, lists):
            if tensor.dim() == 0:
                raise ValueError(
                    f"{path} is a scalar tensor, which cannot be cut over {devices} GPUs: "
                    "pass a number, or one value for each row"
                )
            rows = tensor.size(dim)
            chunk = -(-rows // devices)
            found[path] = (-(-rows // chunk) if chunk else devices), tensor
    counts = {count for count, _ in found.values()}
    if len(counts) > 1:
        listed = "; ".join(
            f"{path} has {tensor.size(dim)} rows, so {count} pieces"
            for path, (count, tensor) in found.items()
        )
        raise ValueError(
            f"the inputs cannot be cut alike along dimension {dim} over {devices} GPUs: {listed}. "
            "Give every tensor the same number of rows, or make what all replicas share a buffer of the module"
        )
    if counts and counts != {1}:
        _warn_of_whole_lists(lists, {tensor.size(dim) for _, tensor in found.values()}, devices)
    return counts.pop() if counts else (devices if inputs or kwargs else 1)


def _warn_of_whole_lists(lists: dict[str, list], rows: set[int], devices: int) -> None:
    for path, items in lists.items():
        if len(items) in rows:
            warnings.warn(
                f"{path} is a list of {len(items)} values, as many as the batch has rows, but only tensors are cut: "
                f"each of the {devices} GPUs gets the whole list. Pass a tensor, or pick the values by row "
                "numbers that are passed as a tensor",
                stacklevel=8,
            )


def _tensors(value, path: str, lists: dict[str, list] | None = None):
    """The tensors inside ``value`` with the way to each: ``input 0[1]['mask']``.

    Lists of texts or numbers are collected in ``lists``.
    """
    if isinstance(value, Tensor):
        yield path, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _tensors(item, f"{path}[{key!r}]", lists)
    elif isinstance(value, (tuple, list)):
        if lists is not None and type(value) is list and all(isinstance(v, (str, int, float)) for v in value):
            lists[path] = value
        for at, item in enumerate(value):
            yield from _tensors(item, f"{path}[{at}]", lists)


def gather(outputs: Sequence, target_device, dim: int = 0):
    """The replicas' ``outputs`` as one, on ``target_device`` (-1 or "cpu": the CPU).

    Tensors are concatenated along ``dim``; tuples, lists, dicts, namedtuples and dataclasses are walked.

    Raises TypeError for outputs that cannot be put together (numbers, strings, None beside tensors),
    ValueError for shapes or keys that do not fit, naming where in the output and the replica.
    """
    return _gather(list(outputs), as_device(target_device, "target_device"), dim, "output")


def _gather(outputs: list, device: torch.device, dim: int, path: str):
    first = outputs[0]
    for replica, output in enumerate(outputs):
        if type(output) is not type(first) and not (isinstance(output, Tensor) and isinstance(first, Tensor)):
            raise TypeError(
                f"{path} is {_kind(first)} on replica 0 but {_kind(output)} on replica {replica}: "
                "every replica must return the same structure"
            )
    if isinstance(first, Tensor):
        _check_shapes(outputs, dim, path)
        return Gather.apply(device, dim, *outputs)
    if first is None:
        return None
    if dataclasses.is_dataclass(first) and not isinstance(first, type):
        values = {
            field.name: _gather(
                [getattr(o, field.name) for o in outputs], device, dim, f"{path}.{field.name}"
            )
            for field in dataclasses.fields(first)
        }
        return dataclasses.replace(first, **values)
    if isinstance(first, dict):
        for replica, output in enumerate(outputs):
            if output.keys() != first.keys():
                odd = sorted(map(repr, output.keys() ^ first.keys()))
                raise ValueError(
                    f"All dicts must have the same number of keys: {path} differs between replica 0 and "
                    f"replica {replica} in {', '.join(odd)}"
                )
        return type(first)(
            (k, _gather([o[k] for o in outputs], device, dim, f"{path}[{k!r}]")) for k in first
        )
    if isinstance(first, (tuple, list)):
        if len({len(output) for output in outputs}) > 1:
            lengths = ", ".join(f"{len(output)} on replica {at}" for at, output in enumerate(outputs))
            raise ValueError(f"{path} has different lengths: {lengths}")
        items = [
            _gather(list(row), device, dim, f"{path}[{at}]")
            for at, row in enumerate(zip(*outputs, strict=True))
        ]
        return type(first)(*items) if hasattr(first, "_fields") else type(first)(items)
    raise TypeError(
        f"{path} is {_kind(first)}, which cannot be gathered from {len(outputs)} GPUs: "
        "return tensors (in tuples, lists, dicts or dataclasses)"
        + (", for example torch.tensor([value], device=x.device)" if isinstance(first, (int, float)) else "")
    )


def _check_shapes(outputs: list[Tensor], dim: int, path: str) -> None:
    first = outputs[0]
    for replica, output in enumerate(outputs):
        same = output.dim() == first.dim() and all(
            axis == dim % max(first.dim(), 1) or output.size(axis) == first.size(axis)
            for axis in range(first.dim())
        )
        if not same:
            raise ValueError(
                f"{path} has shape {list(first.shape)} on replica 0 but {list(output.shape)} on replica "
                f"{replica}: they can only be put together along dimension {dim}. Is the batch in another dimension?"
            )
    if dim != 0 and not -first.dim() <= dim < first.dim():
        raise ValueError(
            f"{path} has shape {list(first.shape)}, which has no dimension {dim} to put the replicas' outputs "
            "together along: return it with that dimension, or give dim=0"
        )


def _kind(value) -> str:
    return (
        "None"
        if value is None
        else f"a {type(value).__name__}"
        + (f" of shape {list(value.shape)}" if isinstance(value, Tensor) else "")
    )
