"""gather: put the replicas' outputs together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..base import tree
from ..base.language import say, wrong
from .devices import Device, as_device
from .functions import Gather, apply


def gather(outputs: Sequence[Any], target_device: Device, dim: int = 0) -> Any:
    """Gather the replicas' ``outputs`` into one, on ``target_device`` (-1 or "cpu": the CPU).

    Tensors are concatenated along ``dim``; tuples, lists, dicts, namedtuples and dataclasses are walked.

    Raises TypeError for outputs that cannot be put together (numbers, strings, None beside tensors),
    ValueError for shapes or keys that do not fit, naming where in the output and the replica.
    """
    return _gather(list(outputs), as_device(target_device, "target_device"), dim, tree.output_name())


def _gather(outputs: list[Any], device: torch.device, dim: int, path: str) -> Any:
    first = outputs[0]
    for replica, output in enumerate(outputs):
        if type(output) is not type(first) and not (isinstance(output, Tensor) and isinstance(first, Tensor)):
            raise wrong(
                TypeError,
                en=f"{path} is {_kind(first)} on replica 0 but {_kind(output)} on replica {replica}: "
                "every replica must return the same structure",
                zh=f"{path}在副本 0 上是 {_kind(first)}，在副本 {replica} 上却是 {_kind(output)}："
                "每个副本返回的结构必须相同",
            )
    if isinstance(first, Tensor):
        _check_shapes(outputs, dim, path)
        return apply(Gather, device, dim, *outputs)
    if first is None:
        return None
    if isinstance(first, dict):
        outputs = [_in_order_of(first, output, replica, path) for replica, output in enumerate(outputs)]
    if tree.children(first) is None:
        example = "torch.tensor([value], device=x.device)" if isinstance(first, (int, float)) else ""
        raise wrong(
            TypeError,
            en=f"{path} is {_kind(first)}, which cannot be gathered from {len(outputs)} GPUs: "
            "return tensors (in tuples, lists, dicts or dataclasses)"
            + (example and f", for example {example}"),
            zh=f"{path}是 {_kind(first)}，无法从 {len(outputs)} 块 GPU 收集："
            "请返回张量（可以放在元组、列表、字典或 dataclass 里）" + (example and f"，例如 {example}"),
        )
    inside = [tree.children(output) or [] for output in outputs]
    if len({len(items) for items in inside}) > 1:
        en = ", ".join(f"{len(items)} on replica {at}" for at, items in enumerate(inside))
        zh = "，".join(f"副本 {at} 上是 {len(items)}" for at, items in enumerate(inside))
        raise wrong(en=f"{path} has different lengths: {en}", zh=f"{path}的长度不一致：{zh}")
    items = [
        _gather([item for _, item in row], device, dim, path + row[0][0]) for row in zip(*inside, strict=True)
    ]
    return tree.rebuild(first, items)


def _in_order_of(first: dict[Any, Any], output: dict[Any, Any], replica: int, path: str) -> dict[Any, Any]:
    """Return ``output`` with its keys in the order of ``first``."""
    if output.keys() != first.keys():
        odd = sorted(map(repr, output.keys() ^ first.keys()))
        raise ValueError(
            # PyTorch's own words, then the keys.
            "All dicts must have the same number of keys"
            + say(
                en=f": {path} differs between replica 0 and replica {replica} in {', '.join(odd)}",
                zh=f"：{path}在副本 0 和副本 {replica} 上的键不同：{'、'.join(odd)}",
            )
        )
    return {key: output[key] for key in first}


def _check_shapes(outputs: list[Tensor], dim: int, path: str) -> None:
    first = outputs[0].shape
    for replica, output in enumerate(outputs):
        shape = output.shape
        same = len(shape) == len(first) and all(
            axis == dim % max(len(first), 1) or shape[axis] == first[axis] for axis in range(len(first))
        )
        if not same:
            raise wrong(
                en=f"{path} has shape {list(first)} on replica 0 but {list(shape)} on replica {replica}: "
                f"they can only be put together along dimension {dim}. Is the batch in another dimension?",
                zh=f"{path}在副本 0 上的形状是 {list(first)}，在副本 {replica} 上是 {list(shape)}："
                f"只能沿第 {dim} 维拼接。批次是不是在别的维度上？",
            )
    if dim != 0 and not -len(first) <= dim < len(first):
        raise wrong(
            en=f"{path} has shape {list(first)}, which has no dimension {dim} to put the replicas' outputs "
            "together along: return it with that dimension, or give dim=0",
            zh=f"{path}的形状是 {list(first)}，没有第 {dim} 维，各副本的输出无法沿它拼接："
            "返回带这一维的张量，或者用 dim=0",
        )


def _kind(value: Any) -> str:
    if value is None:
        return "None"
    name = type(value).__name__
    if not isinstance(value, Tensor):
        return say(en=f"a {name}", zh=name)
    shape = list(value.shape)
    return say(en=f"a {name} of shape {shape}", zh=f"形状为 {shape} 的 {name}")
