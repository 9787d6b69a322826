"""The kernels of ``nn.SyncBatchNorm`` that only CUDA has: statistics of a rank, their reduction, and the backward.

``aten/src/ATen/native/cuda/Normalization.cu`` and ``.cuh``. Statistics are in float32 for inputs in half precision, in
the input's dtype otherwise; results keep the input's memory format. The kernels have no derivatives: SyncBatchNorm has
its own autograd function.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from labkit.base.tree import tensors_in

from ..handlers import handles
from ..ops.mode import MachineMode
from ..state.placement import gpu_of, put_all


def _kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let ``function`` replace torch's of the same name and arguments, for tensors on one GPU."""

    @handles(getattr(torch, function.__name__))
    def handler(mode: MachineMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        gpus = {gpu_of(tensor) for tensor in tensors_in(args, kwargs)}
        gpu = gpus.pop() if len(gpus) == 1 else None
        if gpu is None:
            return mode.general(func, args, kwargs)  # torch raises: no kernel for the CPU, or mixed devices
        mode.check_own(gpu)
        with torch.no_grad():
            return put_all(function(*args, **kwargs), gpu)

    return function


def _wide(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of sums over ``dtype`` (``aten/src/ATen/AccumulateType.h``)."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def _reduced_dimensions(input: Tensor) -> list[int]:
    """Return the dimensions that the statistics of a channel reduce."""
    return [dim for dim in range(input.dim()) if dim != 1]


def _channels(values: Tensor, like: Tensor) -> Tensor:
    """Return a value per channel in the shape to broadcast against ``like``, in the dtype of the statistics."""
    return values.to(_wide(like.dtype)).view([-1 if dim == 1 else 1 for dim in range(like.dim())])


def _moments(input: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and biased variance of each channel."""
    values = input.to(_wide(input.dtype))
    return values.mean(_reduced_dimensions(input)), values.var(_reduced_dimensions(input), correction=0)


@_kernel
def batch_norm_stats(input: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return mean and 1 / standard deviation of each channel."""
    mean, variance = _moments(input)
    return mean, (variance + eps).rsqrt()


@_kernel
def batch_norm_elemt(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, invstd: Tensor, eps: float,
    *, out: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Return ``input`` normalized by these statistics, scaled and shifted."""
    result = (input - _channels(mean, input)) * _channels(invstd, input)
    if weight is not None:
        result = result * _channels(weight, input)
    if bias is not None:
        result = result + _channels(bias, input)
    result = result.to(input.dtype)
    return result if out is None else out.resize_(result.shape).copy_(result)


@_kernel
def batch_norm_gather_stats_with_counts(
    input: Tensor, mean: Tensor, invstd: Tensor, running_mean: Tensor | None, running_var: Tensor | None,
    momentum: float, eps: float, counts: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Combine the ranks' statistics, the rows of ``mean`` and ``invstd``, rank after rank."""
    average = mean.new_zeros(mean.shape[1:])
    squares = torch.zeros_like(average)
    total = 0
    for at, count in enumerate(counts.tolist()):
        factor = 1 / (total + count) if total + count else float("inf")
        squares += (invstd[at].reciprocal() ** 2 - eps) * count
        squares += (average - mean[at]) ** 2 * (total * count * factor)
        average = total * factor * average + count * factor * mean[at]
        total += int(count)
    if running_mean is not None:
        running_mean.copy_((1 - momentum) * running_mean + momentum * average)
    if running_var is not None:
        running_var.copy_((1 - momentum) * running_var + momentum * (squares / (total - 1)))
    return average, (squares / total + eps).rsqrt()


@_kernel
def batch_norm_backward_reduce(
    grad_out: Tensor, input: Tensor, mean: Tensor, invstd: Tensor, weight: Tensor | None,
    input_g: bool, weight_g: bool, bias_g: bool,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """Return the sums of ``grad_out`` and ``grad_out * (input - mean)``, and the gradients of weight and bias."""
    if mean.dtype is not invstd.dtype:
        raise RuntimeError("mean and invstd need to have the same data types")
    grads = grad_out.to(_wide(grad_out.dtype))
    total = grads.sum(_reduced_dimensions(input))
    projected = (grads * (input - _channels(mean, input))).sum(_reduced_dimensions(input))
    dtype = mean.dtype if weight is None else weight.dtype
    return (
        total.to(mean.dtype) if input_g else None,
        projected.to(mean.dtype) if input_g else None,
        (projected * invstd).to(dtype) if weight_g else None,
        total.to(dtype) if bias_g else None,
    )


@_kernel
def batch_norm_backward_elemt(
    grad_out: Tensor, input: Tensor, mean: Tensor, invstd: Tensor, weight: Tensor | None, sum_dy: Tensor,
    sum_dy_xmu: Tensor, count: Tensor,
) -> Tensor:  # fmt: skip
    """Return the gradient of the input, from sums over all ranks; ``count`` has the number of values of each."""
    if mean.dtype is not invstd.dtype:
        raise RuntimeError("mean and invstd need to have the same data types")
    every = int(count.sum())
    slope = _channels(invstd**2 * sum_dy_xmu / every, input)
    grads = grad_out - _channels(sum_dy / every, input) - (input - _channels(mean, input)) * slope
    scale = invstd if weight is None else invstd * weight
    return (grads * _channels(scale, input)).to(input.dtype)
