"""CUDA's three operators of attention, and their backward, for tensors on simulated GPUs.

DTensor's sharding strategies, the ring of ``context_parallel`` (which merges parts of a sequence by their logsumexp),
``FlopCounterMode`` and policies of selective checkpointing all expect CUDA's operators. The CPU's kernel computes the
values. Shapes are CUDA's: the memory-efficient kernel pads its logsumexp to blocks of 32 rows
(torch/_meta_registrations.py, meta__scaled_dot_product_efficient_attention), cuDNN's has one dimension more.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from labkit.base.patches import Patch

from .. import hooks
from ..handlers import handles
from ..ops.mode import MachineMode
from ..state.gpu import TheMachine
from ..state.random import RealGenerator

ROWS = 32  # in a block of the memory-efficient kernel (mem_eff_attention/kernel_forward.h, kAlignLSE)
_HALVES = (torch.float16, torch.bfloat16)
_aten: Any = torch.ops.aten
_cpu: Any = _aten._scaled_dot_product_flash_attention_for_cpu
_cpu_backward: Any = _aten._scaled_dot_product_flash_attention_for_cpu_backward
FLASH: Any = _aten._scaled_dot_product_flash_attention
EFFICIENT: Any = _aten._scaled_dot_product_efficient_attention
CUDNN: Any = _aten._scaled_dot_product_cudnn_attention


def _fits_cpu(q: Tensor, k: Tensor, v: Tensor, dropout: float) -> bool:
    """Whether the CPU has a kernel for this call."""
    return not dropout and q.shape[1::2] == k.shape[1::2] == v.shape[1::2]


def _scores(q: Tensor, k: Tensor, bias: Tensor | None, causal: bool, scale: float | None) -> Tensor:
    scores = (q @ k.mT) * (1 / math.sqrt(q.size(-1)) if scale is None else scale)
    if bias is not None:
        scores = scores + bias
    if causal:
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -math.inf)
    return scores


def _dropout_factors(scores: Tensor, dropout: float, seed: Tensor) -> Any:
    """Return the factor of each score: 0 where dropout with ``seed`` drops the score."""
    if not dropout:
        return 1.0
    generator = RealGenerator().manual_seed(int(seed))
    return (torch.rand(scores.shape, generator=generator) >= dropout) / (1 - dropout)


def _in_float32(q: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
    """Return the tensors in float32, each head of keys and values repeated for its group of query heads."""
    return (
        q.float(),
        *(one.float().repeat_interleave(q.size(1) // one.size(1), 1) for one in others),
    )


def _forward(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, dropout: float, causal: bool, scale: float | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the output, the logsumexp in float32, and the seed of dropout."""
    seed = torch.zeros((), dtype=torch.int64)
    if _fits_cpu(q, k, v, dropout):
        out, logsumexp = _cpu(q, k, v, 0.0, causal, attn_mask=bias, scale=scale)
        return out, logsumexp, seed
    if dropout:
        seed.random_()
    wide, keys, values = _in_float32(q, k, v)
    scores = _scores(wide, keys, bias, causal, scale)
    logsumexp = scores.logsumexp(-1)
    weights = (scores - logsumexp[..., None]).exp() * _dropout_factors(scores, dropout, seed)
    return (weights @ values).to(q.dtype), logsumexp, seed


def _backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, out: Tensor, logsumexp: Tensor, seed: Tensor,
    dropout: float, causal: bool, scale: float | None, of_bias: bool = False,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """Return the gradients of query, key, value and, if ``of_bias``, the bias. The logsumexp may cover more keys."""
    if _fits_cpu(q, k, v, dropout) and not of_bias:
        return *_cpu_backward(grad, q, k, v, out, logsumexp, 0.0, causal, attn_mask=bias, scale=scale), None
    wide, keys, values = _in_float32(q, k, v)
    scores, grad = _scores(wide, keys, bias, causal, scale), grad.float()
    weights, factors = (scores - logsumexp[..., None]).exp(), _dropout_factors(scores, dropout, seed)
    inner = weights * ((grad @ values.mT) * factors - (grad * out.float()).sum(-1, keepdim=True))
    factor = 1 / math.sqrt(q.size(-1)) if scale is None else scale
    of_groups = [
        found.unflatten(1, (one.size(1), -1)).sum(2).to(one.dtype)
        for found, one in ((inner.mT @ wide * factor, k), ((weights * factors).mT @ grad, v))
    ]
    of_bias_too = inner.sum_to_size(bias.shape).to(bias.dtype) if of_bias and bias is not None else None
    return (inner @ keys * factor).to(q.dtype), *of_groups, of_bias_too


def _halves_only(q: Tensor) -> None:
    if q.dtype not in _HALVES:  # aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp, mha_fwd
        raise RuntimeError("FlashAttention only support fp16 and bf16 data type")


def _flash(
    q: Tensor, k: Tensor, v: Tensor, dropout: float = 0.0, causal: bool = False, debug: bool = False, *,
    scale: float | None = None,
) -> Any:  # fmt: skip
    _halves_only(q)
    out, logsumexp, seed = _forward(q, k, v, None, dropout, causal, scale)
    state = torch.stack((seed, seed)).view(torch.uint64)
    return (
        out, logsumexp, None, None, q.size(2), k.size(2), state, state.new_zeros(()), q.new_empty(0)
    )  # fmt: skip


def _flash_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, logsumexp: Tensor, cum_q: Any, cum_k: Any, max_q: int,
    max_k: int, dropout: float, causal: bool, state: Tensor, _: Tensor, *, scale: float | None = None,
) -> Any:  # fmt: skip
    seed = state.view(torch.int64).flatten()[0]
    return _backward(grad, q, k, v, None, out, logsumexp, seed, dropout, causal, scale)[:3]


def _efficient(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, with_logsumexp: bool, dropout: float = 0.0,
    causal: bool = False, *, scale: float | None = None,
) -> Any:  # fmt: skip
    out, logsumexp, seed = _forward(q, k, v, bias, dropout, causal, scale)
    pad = -q.size(2) % ROWS
    logsumexp = torch.nn.functional.pad(logsumexp, (0, pad), value=math.inf)
    return out, logsumexp if with_logsumexp else logsumexp[..., :0], seed, torch.zeros_like(seed)


def _efficient_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, out: Tensor, logsumexp: Tensor, seed: Tensor,
    _: Tensor, dropout: float, wanted: list[bool], causal: bool = False, *, scale: float | None = None,
) -> Any:  # fmt: skip
    logsumexp, of_bias = logsumexp[..., : q.size(2)], bias is not None and wanted[3]
    return _backward(grad, q, k, v, bias, out, logsumexp, seed, dropout, causal, scale, of_bias)


def _cudnn(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, with_logsumexp: bool, dropout: float = 0.0,
    causal: bool = False, debug: bool = False, *, scale: float | None = None,
) -> Any:  # fmt: skip
    _halves_only(q)
    out, logsumexp, seed = _forward(q, k, v, bias, dropout, causal, scale)
    zero = torch.zeros_like(seed)
    return out, logsumexp[..., None], None, None, q.size(2), k.size(2), seed, zero, None


def _cudnn_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, logsumexp: Tensor, seed: Tensor, _: Tensor,
    bias: Tensor | None, cum_q: Any, cum_k: Any, max_q: int, max_k: int, dropout: float, causal: bool, *,
    scale: float | None = None,
) -> Any:  # fmt: skip
    return _backward(grad, q, k, v, bias, out, logsumexp[..., 0], seed, dropout, causal, scale)[:3]


_KERNELS = {
    FLASH: _flash, EFFICIENT: _efficient, CUDNN: _cudnn,
    _aten._scaled_dot_product_flash_attention_backward: _flash_backward,
    _aten._scaled_dot_product_efficient_attention_backward: _efficient_backward,
    _aten._scaled_dot_product_cudnn_attention_backward: _cudnn_backward,
}  # fmt: skip


def _call_without_modes(kernel: Any, *args: Any, **kwargs: Any) -> Any:
    with torch._C.DisableTorchFunction():  # temporary tensors take no room on the GPU
        return kernel(*args, **kwargs)


def begin(machine: TheMachine) -> None:
    """Give the CPU kernels for these operators while ``machine`` is in use."""
    registrations: list[Any] = vars(torch.library).get("_labkit_attention", [None])
    if registrations:
        return
    library: Any = torch._C._dispatch_library("IMPL", "aten", "", __file__, 0)
    for operator, kernel in _KERNELS.items():
        library.impl(operator.__name__, "CPU", partial(_call_without_modes, kernel), False)
    registrations.append(library)


@hooks.patches.add
def patches(machine: TheMachine) -> Iterator[Patch]:
    """Remove the kernels with the machine."""
    yield Patch(torch.library, "_labkit_attention", [])


@handles(*_KERNELS, *(operator.default for operator in _KERNELS))
def _operator(mode: MachineMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Provide the kernels for direct calls of the operators."""
    begin(mode.machine)
    return mode.general(func, args, kwargs)
