"""Compare two results: the same tensors in the same places, and the same values up to rounding."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from labkit.base.texts import Text
from labkit.base.tree import tensors


def is_alike(one: Any, other: Any) -> bool:
    """Return whether two results have the same tensors in the same places, and the same values up to rounding."""
    first, second = tensors(one, "result"), tensors(other, "result")
    return first.keys() == second.keys() and all(is_close(first[path], second[path]) for path in first)


def is_close(one: Tensor, other: Tensor) -> bool:
    """Return whether tensors are equal up to float32 rounding of sums, relative to the largest finite value."""
    if one.shape != other.shape or one.is_floating_point() != other.is_floating_point():
        return False
    numbers = other[other.isfinite()]
    scale = float(numbers.abs().max()) if numbers.numel() else 0.0
    return torch.allclose(one.double(), other.double(), rtol=0, atol=2e-4 * scale + 1e-5)


def shapes_of(result: Any) -> Text:
    """Return the shapes in a result, as in ``[8, 5], [2, 8]``, or its type if there is no tensor in it."""
    found = tensors(result, "").values()
    if not found:
        return Text(*[f"`{type(result).__name__}`"] * 2)
    names = [str(list(tensor.shape)) if tensor.dim() else None for tensor in found]
    return Text(
        ", ".join(name or "one number" for name in names), "、".join(name or "一个数" for name in names)
    )


def gap_of(one: Any, other: Any) -> float:
    """Return the largest difference between two results of the same shapes."""
    pairs = zip(tensors(one, "").values(), tensors(other, "").values(), strict=True)
    return max(float((a.double() - b.double()).abs().max()) for a, b in pairs)
