"""gather: the replicas' outputs put together again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..base import tree
from .devices import Device, as_device
from .functions import Gather, apply


def gather(outputs: Sequence[Any], target_device: Device, dim: int = 0) -> Any:
    """The replicas' ``outputs`` as one, on ``target_device`` (-1 or "cpu": the CPU).

    Tensors are concatenated along ``dim``; tuples, lists, dicts, namedtuples and dataclasses are walked.

    Raises TypeError for outputs that cannot be put together (numbers, strings, None beside tensors),
    ValueError for shapes or keys that do not fit, naming where in the output and the replica.
    """
    return _gather(list(outputs), as_device(target_device, "target_device"), dim, "output")


def _gather(outputs: list[Any], device: torch.device, dim: int, path: str) -> Any:
    first = outputs[0]
    for replica, output in enumerate(outputs):
        if type(output) is not type(first) and not (isinstance(output, Tensor) and isinstance(first, Tensor)):
            raise TypeError(
                f"{path} is {_kind(first)} on replica 0 but {_kind(output)} on replica {replica}: "
                "every replica must return the same structure"
            )
    if isinstance(first, Tensor):
        _check_shapes(outputs, dim, path)
        return apply(Gather, device, dim, *outputs)
    if first is None:
        return None
    if isinstance(first, dict):
        outputs = [_in_order_of(first, output, replica, path) for replica, output in enumerate(outputs)]
    if tree.children(first) is None:
        raise TypeError(
            f"{path} is {_kind(first)}, which cannot be gathered from {len(outputs)} GPUs: "
            "return tensors (in tuples, lists, dicts or dataclasses)"
            + (
                ", for example torch.tensor([value], device=x.device)"
                if isinstance(first, (int, float))
                else ""
            )
        )
    inside = [tree.children(output) or [] for output in outputs]
    if len({len(items) for items in inside}) > 1:
        lengths = ", ".join(f"{len(items)} on replica {at}" for at, items in enumerate(inside))
        raise ValueError(f"{path} has different lengths: {lengths}")
    items = [
        _gather([item for _, item in row], device, dim, path + row[0][0]) for row in zip(*inside, strict=True)
    ]
    return tree.rebuilt(first, items)


def _in_order_of(first: dict[Any, Any], output: dict[Any, Any], replica: int, path: str) -> dict[Any, Any]:
    """The pairs of ``output`` in the order that the keys have in ``first``."""
    if output.keys() != first.keys():
        odd = sorted(map(repr, output.keys() ^ first.keys()))
        raise ValueError(
            f"All dicts must have the same number of keys: {path} differs between replica 0 and "
            f"replica {replica} in {', '.join(odd)}"
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
            raise ValueError(
                f"{path} has shape {list(first)} on replica 0 but {list(shape)} on replica "
                f"{replica}: they can only be put together along dimension {dim}. Is the batch in another dimension?"
            )
    if dim != 0 and not -len(first) <= dim < len(first):
        raise ValueError(
            f"{path} has shape {list(first)}, which has no dimension {dim} to put the replicas' outputs "
            "together along: return it with that dimension, or give dim=0"
        )


def _kind(value: Any) -> str:
    if value is None:
        return "None"
    shape = f" of shape {list(value.shape)}" if isinstance(value, Tensor) else ""
    return f"a {type(value).__name__}{shape}"
