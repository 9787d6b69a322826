"""Compare results up to rounding, and measure differences."""

from __future__ import annotations

from collections.abc import Iterable
from math import isfinite, isnan
from typing import Any

import torch
from torch import Tensor

# Relative differences caused by adding the same numbers in another order; 1e-4 for dtypes not listed.
RELATIVE = {torch.float16: 2e-2, torch.bfloat16: 5e-2, torch.float64: 1e-9}

# Visit at most this many nodes of an autograd graph.
_MOST_NODES = 100_000


def is_number(tensor: Tensor) -> bool:
    """Return whether ``tensor`` is one number, of shape [] or [1]."""
    return tensor.numel() == 1 and tensor.dim() <= 1


def difference(one: Tensor, other: Tensor) -> float:
    """Return the largest difference in units of the largest value; inf if shapes or types differ."""
    with torch._C.DisableTorchFunction():  # no GPU computes this: all values are on the CPU
        if one.shape != other.shape or one.dtype != other.dtype:
            return float("inf")
        one, other = one.detach(), other.detach()
        if one.layout is not torch.strided:
            one, other = one.to_dense(), other.to_dense()
        if torch.equal(one, other):
            return 0.0
        if not (one.is_floating_point() or one.is_complex()):
            return float("inf")
        gap = largest_gap(one, other)
        scale = float(one.abs().max())
        if not isfinite(scale):
            finite = one[one.isfinite()].abs()
            scale = float(finite.max()) if finite.numel() else 1.0
        return float("inf") if isnan(gap) else gap / max(scale, 1e-6)


def largest_gap(one: Tensor, other: Tensor) -> float:
    """Return the largest absolute difference; two nans count as equal, a nan and a number give nan."""
    gap = float((one - other).abs().max())
    if not isnan(gap):
        return gap
    alike = (one == other) | (one.isnan() & other.isnan())
    return float(torch.where(alike, torch.zeros_like(one), one - other).abs().max())


def same(one: Tensor, other: Tensor, least: torch.dtype = torch.float64) -> bool:
    """Return whether two tensors agree up to rounding; ``least`` is the least precise dtype of their computation."""
    return difference(one, other) <= max(tolerance(one.dtype), tolerance(least))


def tolerance(dtype: torch.dtype) -> float:
    """Return the largest relative difference from rounding in sums of this dtype."""
    return RELATIVE.get(dtype, 1e-4)


def lowest_precision(tensors: Iterable[Tensor]) -> torch.dtype:
    """Return the least precise floating-point dtype in the tensors' autograd graphs."""
    visited: set[object] = set()
    nodes: list[Any] = []
    found = {torch.float64}
    for tensor in tensors:
        found.add(tensor.dtype)
        nodes.append(tensor.grad_fn)
    while nodes and len(visited) < _MOST_NODES:
        node = nodes.pop()
        if node is None or node in visited:
            continue
        visited.add(node)
        found.update(one.dtype for one in getattr(node, "_input_metadata", ()))
        nodes += [following for following, _ in node.next_functions]
    return max((dtype for dtype in found if dtype.is_floating_point), key=tolerance)
