"""A training step on all GPUs, and the memory that it takes."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from ...base.units import cuda_bytes
from ..errors import is_mix, line_of, short_text
from ..findings.failures import BATCH_NORM_OF_ONE, FAILS_IN_TRAINING, FIXED_DEVICE
from ..findings.memory import HOME_MEMORY, MEMORY_FITS, MEMORY_TOO_SMALL
from ..result import Finding, GpuMemory
from ..runs import SOURCE, Runs
from .failures import known
from .gradients import gradients
from .layout import layout
from .probe import probe

# Bytes on a GPU that nobody has to think about.
SMALL = 2**20


@probe(
    FIXED_DEVICE, BATCH_NORM_OF_ONE, FAILS_IN_TRAINING, MEMORY_FITS, MEMORY_TOO_SMALL, HOME_MEMORY,
    after=(layout, gradients),
)  # fmt: skip
def memory(runs: Runs) -> Iterator[Finding]:
    """Runs a training step on n GPUs in the model's own mode; measures what lives on each GPU beyond what did before.

    Asked only where the wrapped model runs at all. The optimizer's state is reckoned (Adam's, twice the weights),
    not measured; what CUDA and its caching allocator need besides is not known here.
    """
    parameters = list(runs.subject.model.parameters())
    if runs.many.error is not None or not any(p.requires_grad for p in parameters):
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
        need = home + 2 * _bytes(*(p for p in parameters if p.requires_grad))
        kind = MEMORY_FITS if need <= runs.capacity else MEMORY_TOO_SMALL
        yield kind(SOURCE, need=cuda_bytes(need), capacity=cuda_bytes(runs.capacity))
    if home > max(SMALL, 1.25 * others):
        yield HOME_MEMORY(SOURCE, home=cuda_bytes(home), others=cuda_bytes(others))


def _failure(runs: Runs, error: Exception) -> Finding:
    where, problem = line_of(error), short_text(error)
    if is_mix(error):
        return FIXED_DEVICE(where, problem=problem)
    one_row = "more than 1 value per channel" in problem
    return (BATCH_NORM_OF_ONE if one_row else FAILS_IN_TRAINING)(where, gpus=runs.gpus, problem=problem)


def _bytes(*tensors: Tensor) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
