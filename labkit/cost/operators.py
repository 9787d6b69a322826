"""Predict the seconds of an ATen operator on a GPU.

The time is the longest of three: operations over the share of the peak that the shape reaches, bytes over the memory's
bandwidth, and a kernel's start.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch

from ..base.tree import tensors_in
from .hardware import Accelerator
from .plan import product_seconds

_START = 5e-6  # of a kernel
_PRODUCTS = {torch.ops.aten.mm: 0, torch.ops.aten.addmm: 1, torch.ops.aten.bmm: 0, torch.ops.aten.baddbmm: 1}


@cache
def _operations() -> Mapping[Any, Callable[..., Any]]:
    """Return torch's functions that count operations, by operator.

    Importing them warns if triton is missing; nothing here needs it, so the warning is hidden.
    """
    log = logging.getLogger("torch.utils.flop_counter")
    log.disabled = True
    try:
        from torch.utils.flop_counter import flop_registry
    finally:
        log.disabled = False
    return flop_registry


def operator_seconds(
    func: Any, args: Any, kwargs: Any, results: Any, gpu: Accelerator
) -> tuple[float, float]:
    """Return the operations of ``func`` and its seconds."""
    moved = sum(one.numel() * one.element_size() for one in tensors_in(args, kwargs, results))
    seconds = max(_START, moved / gpu.bandwidth)
    packet = func.overloadpacket
    count = _operations().get(packet)
    if count is None:
        return 0.0, seconds
    flops = float(count(*args, **kwargs, out_val=results))
    if not flops:  # no rows, as for an expert without tokens
        return 0.0, seconds
    first = next(one for one in tensors_in(args))
    slower = 1.0
    if first.element_size() > 2:
        slower = 2 if torch.backends.cuda.matmul.allow_tf32 else gpu.flops / gpu.single
    if packet in _PRODUCTS:
        a, b = args[_PRODUCTS[packet] : _PRODUCTS[packet] + 2]
        many = a.shape[0] if a.dim() == 3 else 1
        took = many * product_seconds(a.shape[-2], a.shape[-1], b.shape[-1], gpu)
    else:
        share = gpu.attention if "attention" in str(packet) else gpu.product
        took = flops / (gpu.flops * share)
    return flops, max(seconds, took * slower)
