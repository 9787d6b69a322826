"""scatter: cut the inputs over devices."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ..base import tree
from ..base.language import say, wrong
from .devices import Device, as_devices
from .functions import Scatter, apply


def scatter(inputs: Any, target_gpus: Sequence[Device], dim: int = 0) -> Sequence[Any]:
    """Cut ``inputs`` over devices: tensors are cut, containers walked, other objects shared.

    A tensor gives a tuple of pieces; anything else a list. With fewer rows than devices there are fewer
    entries than devices.
    """
    return _scatter(inputs, as_devices(target_gpus, "target_gpus"), dim)


def _scatter(value: Any, devices: list[torch.device], dim: int) -> Sequence[Any]:
    if isinstance(value, Tensor):
        pieces: tuple[Tensor, ...] = apply(Scatter, devices, None, dim, value)
        return pieces
    inside = tree.children(value, dataclasses=False)
    if not inside:
        return [value for _ in devices]
    rows = zip(*(_scatter(item, devices, dim) for _, item in inside), strict=False)
    if isinstance(value, dict) or hasattr(value, "_fields"):
        return [tree.rebuild(value, row) for row in rows]
    # As in PyTorch (torch/nn/parallel/scatter_gather.py), subclasses other than namedtuples become plain.
    return [list(row) if isinstance(value, list) else row for row in rows]


def scatter_kwargs(
    inputs: tuple[Any, ...], kwargs: dict[str, Any] | None, target_gpus: Sequence[Device], dim: int = 0
) -> tuple[tuple[Any, ...], tuple[dict[str, Any], ...]]:
    """Scatter positional and keyword inputs: return two tuples with an entry for each device.

    Raises ValueError, naming the arguments, where tensors would be cut into different numbers of pieces:
    PyTorch drops rows there without a word, or fails later without a name.
    """
    devices = as_devices(target_gpus, "target_gpus")
    count = _pieces(inputs, kwargs or {}, len(devices), dim)
    devices = devices[:count]
    positional = _scatter(tuple(inputs), devices, dim) if inputs else [()] * count
    keyword = _scatter(dict(kwargs), devices, dim) if kwargs else [{}] * count
    return tuple(positional), tuple(keyword)


def _pieces(inputs: tuple[Any, ...], kwargs: dict[str, Any], devices: int, dim: int) -> int:
    """Return the number of pieces that the inputs are cut into: the number of replicas with work."""
    named = tree.named_inputs(inputs, kwargs)
    found: dict[str, tuple[int, int]] = {}  # path of each tensor -> pieces, rows
    for name, value in named.items():
        for path, tensor in tree.tensors(value, name, dataclasses=False).items():
            if tensor.dim() == 0:
                raise wrong(
                    en=f"{path} is a scalar tensor, which cannot be cut over {devices} GPUs: "
                    "pass a number, or one value for each row",
                    zh=f"{path} 是标量张量，无法切分到 {devices} 块 GPU 上：传一个数，或者每行一个值",
                )
            rows = tensor.size(dim)
            chunk = -(-rows // devices)
            found[path] = (-(-rows // chunk) if chunk else devices), rows
    counts = {count for count, _ in found.values()}
    if len(counts) > 1:
        en = "; ".join(f"{path} has {rows} rows, so {count} pieces" for path, (count, rows) in found.items())
        zh = "；".join(f"{path} 有 {rows} 行，即 {count} 个分块" for path, (count, rows) in found.items())
        raise wrong(
            en=f"the inputs cannot be cut alike along dimension {dim} over {devices} GPUs: {en}. "
            "Give every tensor the same number of rows, or make what all replicas share a buffer of the module",
            zh=f"这些输入沿第 {dim} 维切分到 {devices} 块 GPU 时，块数不一致：{zh}。"
            "让每个张量的行数相同，或者把所有副本共用的张量注册为模块的 buffer",
        )
    if counts and counts != {1}:
        lengths = {rows for _, rows in found.values()}
        for path, length in (pair for name, value in named.items() for pair in _plain_lists(value, name)):
            if length in lengths:
                warnings.warn(
                    say(
                        en=f"{path} is a list of {length} values, as many as the batch has rows, but only tensors "
                        f"are cut: each of the {devices} GPUs gets the whole list. Pass a tensor, or pick the values "
                        "by row numbers that are passed as a tensor",
                        zh=f"{path} 是有 {length} 个值的列表，和批次的行数一样多；但只有张量会被切分，"
                        f"{devices} 块 GPU 拿到的都是整个列表。请传张量，或者另传一个行号张量，按行号取值",
                    ),
                    stacklevel=7,
                )
    return counts.pop() if counts else (devices if inputs or kwargs else 1)


def _plain_lists(value: Any, path: str) -> Iterator[tuple[str, int]]:
    """Yield the path and length of each list of texts or numbers in ``value``."""
    if type(value) is list and all(isinstance(item, (str, int, float)) for item in value):
        yield path, len(value)
    for step, item in tree.children(value, dataclasses=False) or ():
        yield from _plain_lists(item, path + step)
