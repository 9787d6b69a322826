"""Whether two runs gave the same, and by how much they differ."""

from __future__ import annotations

import torch
from torch import Tensor

# Sums over pieces are added in another order: float32 results differ in their last digits.
RELATIVE = {torch.float16: 2e-2, torch.bfloat16: 5e-2, torch.float64: 1e-9}


def difference(one: Tensor, other: Tensor) -> float:
    """The largest difference, in units of the largest value; inf for other shapes or types."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return float("inf")
    if not one.numel():
        return 0.0
    one, other = one.detach().cpu(), other.detach().cpu()
    if not (one.is_floating_point() or one.is_complex()):
        return 0.0 if torch.equal(one, other) else float("inf")
    if one.layout is not torch.strided:
        one, other = one.to_dense(), other.to_dense()
    both_odd = (one.isnan() & other.isnan()) | (one == other)
    gaps = torch.where(both_odd, torch.zeros_like(one), one - other).abs().double()
    if gaps.isnan().any():
        return float("inf")
    finite = one[one.isfinite()].abs()
    scale = max(float(finite.max()) if finite.numel() else 1.0, 1e-6)
    return float(gaps.max()) / scale


def same(one: Tensor, other: Tensor, slack: float = 1.0) -> bool:
    """Whether the two agree up to rounding (``slack`` times as much)."""
    return difference(one, other) <= slack * RELATIVE.get(one.dtype, 1e-4)
