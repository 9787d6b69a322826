"""Training on several GPUs: its gradients, and the memory that a step takes."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from ...base.language import say
from ...base.units import cuda_bytes
from ..compare import largest_gap, same, tolerance
from ..errors import is_mix, short_text
from ..findings import failures, memory, outputs
from ..findings.kind import gap_text
from ..result import Finding, GpuMemory
from ..runs import SOURCE, Runs
from .alone import known, returned
from .layout import biased_loss, layout
from .probe import probe

# Bytes on a GPU that nobody has to think about.
SMALL = 2**20


@probe(
    failures.LOSS_FAILS, outputs.BIASED_LOSS, outputs.BIASED_LOSS_OF_EVEN_PIECES, outputs.GRADIENTS_DIFFER,
    after=(returned,),
)  # fmt: skip
def gradients(runs: Runs) -> Iterator[Finding]:
    """Runs forward and backward in eval mode on 1 and on n GPUs; compares the loss and every parameter's gradient.

    Asked only where the outputs agree. Without a loss of the user's own, a fixed weighted sum of the outputs stands
    for it; a gradient that is wrong in training mode alone is not seen.
    """
    if not runs.agree or not runs.trains:
        return
    one, many = runs.fresh(training=False), runs.fresh(training=False)
    try:
        first, second = runs.step(one), runs.step(nn.DataParallel(many, runs.ids))
    except Exception as error:
        yield failures.LOSS_FAILS.of(error)
        return
    if first is None or second is None:
        return
    if runs.loss is not None and not same(first, second):
        yield biased_loss(runs, "loss", float(first), float(second.mean()))
    worst, name, agree = _worst_gap(one, many, tolerance(runs.one.least))
    runs.say_compared(say(en="gradients", zh="梯度"), worst, agree)
    if not agree:
        yield outputs.GRADIENTS_DIFFER(name, gap=gap_text(worst))


def _worst_gap(one: nn.Module, many: nn.Module, rounding: float) -> tuple[float, str, bool]:
    """The largest relative gap between the gradients of two modules, whose it is, and whether it is but rounding."""
    pairs = [
        (name, _gradient(ours), _gradient(theirs))
        for (name, ours), theirs in zip(one.named_parameters(), many.parameters(), strict=True)
        if ours.numel() and (ours.grad is not None or theirs.grad is not None)
    ]
    scale = max((float(a.abs().max()) for _, a, _ in pairs), default=0.0)
    # Half-precision gradients are sums of rounded numbers: what is small beside the largest is noise.
    slack, noise = (1e-3, 1e-3) if rounding <= 1e-3 else (2 * rounding, 0.1)
    worst, worst_name = 0.0, ""
    for name, a, b in pairs:
        # A gradient that is zero but for rounding is held against the largest of all.
        gap = largest_gap(a, b) / max(float(a.abs().max()), noise * scale, 1e-12)
        if not gap <= worst:  # nan too
            worst, worst_name = gap, name
    return worst, worst_name, worst <= slack


def _gradient(parameter: Tensor) -> Tensor:
    """The gradient, dense; zeros if there is none."""
    grad = parameter.grad
    if grad is None:
        return torch.zeros_like(parameter)
    return grad if grad.layout is torch.strided else grad.to_dense()


@probe(
    failures.FIXED_DEVICE, failures.BATCH_NORM_OF_ONE, failures.FAILS_IN_TRAINING,
    memory.MEMORY_FITS, memory.MEMORY_TOO_SMALL, memory.HOME_MEMORY,
    after=(layout, gradients),
)  # fmt: skip
def training_step(runs: Runs) -> Iterator[Finding]:
    """Runs a training step on n GPUs in the model's own mode; measures what lives on each GPU beyond what did before.

    Asked only where the wrapped model runs at all. The optimizer's state is reckoned (Adam's, twice the weights),
    not measured; what CUDA and its caching allocator need besides is not known here.
    """
    if runs.many.error is not None or not runs.trains:
        return
    gc.collect()  # what an earlier run left would count as there before, and go during this one
    before = [torch.cuda.memory_allocated(k) for k in runs.ids]
    model = runs.fresh(runs.subject.training)
    for gpu in runs.ids:
        torch.cuda.reset_peak_memory_stats(gpu)
    try:
        runs.step(nn.DataParallel(model, runs.ids))
    except Exception as error:
        if runs.subject.training and not known(runs, error):
            yield _failure(runs, error)
        return
    peaks = [max(0, torch.cuda.max_memory_allocated(k) - before[k]) for k in runs.ids]
    weights = _bytes(*model.parameters(), *model.buffers())
    runs.memory = tuple(GpuMemory(f"cuda:{k}", 0 if k else weights, peak) for k, peak in enumerate(peaks))
    home, others = peaks[0], max(peaks[1:])
    if runs.capacity is not None:
        need = home + 2 * _bytes(*(p for p in model.parameters() if p.requires_grad))
        kind = memory.MEMORY_FITS if need <= runs.capacity else memory.MEMORY_TOO_SMALL
        yield kind(SOURCE, need=cuda_bytes(need), capacity=cuda_bytes(runs.capacity))
    if home > max(SMALL, 1.25 * others):
        yield memory.HOME_MEMORY(SOURCE, home=cuda_bytes(home), others=cuda_bytes(others))


def _failure(runs: Runs, error: Exception) -> Finding:
    if is_mix(error):
        return failures.FIXED_DEVICE.of(error)
    one_row = "more than 1 value per channel" in short_text(error)
    return (failures.BATCH_NORM_OF_ONE if one_row else failures.FAILS_IN_TRAINING).of(error, gpus=runs.gpus)


def _bytes(*tensors: Tensor) -> int:
    return sum(tensor.nbytes for tensor in tensors)
