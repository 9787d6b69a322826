"""Probes of training on several GPUs: gradients, the state after a forward, and the memory of a step."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from labkit.base.units import cuda_bytes

from ..comparison import SOURCE, Comparison
from ..errors import is_mix, short_text
from ..findings import KINDS, PHRASES, gap_text, list_some
from ..result import Finding, GpuMemory
from ..rounding import difference, largest_gap, same, tolerance
from ..runs import Runs
from .layout import biased_loss
from .one_gpu import is_explained

# A ReLU whose input is zero up to rounding may cause a smaller gap, in units of the largest gradient.
ROUNDED = 0.05

# Ignore less memory than this, in bytes.
SMALL = 2**20


def check_gradients(runs: Runs) -> Iterator[Finding]:
    """Run backward on 1 and on n GPUs; compare the loss and the gradient of every parameter.

    Skip a model whose outputs differ, except numbers that a mean or sum over the replicas restores. Without a loss
    from the user, use a fixed weighted sum of the outputs.
    """
    mode = runs.mode
    if mode.random or mode.reductions is None or not runs.trains or runs.has_error("shared_state"):
        return
    try:
        first, second = mode.backward(mode.one), mode.backward(mode.many)
    except Exception as error:
        yield KINDS["loss_fails"].at_error(error)
        return
    if first is None or second is None:
        return
    biased = runs.loss is not None and not same(first, second, mode.one.least)
    if biased:
        yield _report_biased_loss(runs, float(first), float(second))
    one = mode.one.model
    worst, name, agree, count = _worst_gap(one, mode.many.model, tolerance(mode.one.least))
    if not agree and not biased and worst < ROUNDED and _agree_in_double(mode.in_double):
        worst, agree = 0.0, True
    total = sum(parameter.requires_grad for parameter in one.parameters())
    some = PHRASES["gradients.some"](count=count, total=total)
    runs.say_compared(PHRASES["gradients"](count=count) if count == total else some, worst, agree)
    if not agree and not biased:
        own = ".of_a_piece" * _agree_with_pieces(mode)
        yield KINDS["gradients_differ" + own](name, gap=gap_text(worst))


def _agree_with_pieces(mode: Comparison) -> bool:
    """Return whether the pieces, run one after the other on a single GPU, give the gradients of n GPUs."""
    try:
        mode.backward(mode.pieces)
    except Exception:
        return False
    model, many = mode.pieces.model, mode.many.model
    return model is not None and _worst_gap(model, many, tolerance(mode.one.least))[2]


def _agree_in_double(mode: Comparison) -> bool:
    """Return whether the gradients agree in double precision; False if a run fails."""
    try:
        mode.backward(mode.one), mode.backward(mode.many)
    except Exception:
        return False
    one, many = mode.one.model, mode.many.model
    return one is not None and many is not None and _worst_gap(one, many, tolerance(torch.float64))[2]


def _report_biased_loss(runs: Runs, one: float, many: float) -> Finding:
    """Return the finding for a user's loss function whose value differs on n GPUs."""
    ways = set((runs.mode.reductions or {}).values())
    if len(ways) != 1:
        return biased_loss(runs, "loss", one, many)
    facts = {"one": one, "many": many, "gpus": runs.gpus, "pieces": len(runs.plan.pieces)}
    return KINDS["biased_loss.numbers"]("loss", method="sum" if ways == {torch.sum} else "mean", **facts)


def _worst_gap(one: nn.Module, many: nn.Module, rounding: float) -> tuple[float, str, bool, int]:
    """Return (largest relative gap between gradients, name of the parameter, rounding only?, number of gradients)."""
    # The model on n GPUs lacks parameters that forward creates: they are lost with the replica.
    others, pairs = dict(many.named_parameters()), []
    for name, ours in one.named_parameters():
        theirs = others.get(name)
        if theirs is not None and ours.numel() and (ours.grad is not None or theirs.grad is not None):
            pairs.append((name, _gradient(ours), _gradient(theirs)))
    scale = max((float(a.abs().max()) for _, a, _ in pairs), default=0.0)
    # In half precision, gradients much smaller than the largest are noise from rounding.
    slack, noise = (1e-3, 1e-3) if rounding <= 1e-3 else (2 * rounding, 0.1)
    worst, worst_name = 0.0, ""
    for name, a, b in pairs:
        # Compare a gradient that is zero up to rounding with the largest of all.
        gap = largest_gap(a, b) / max(float(a.abs().max()), noise * scale, 1e-12)
        if not gap <= worst:  # nan too
            worst, worst_name = gap, name
    return worst, worst_name, worst <= slack, len(pairs)


def _gradient(parameter: Tensor) -> Tensor:
    """Return the gradient, dense; zeros if there is none."""
    grad = parameter.grad
    if grad is None:
        return torch.zeros_like(parameter)
    return grad if grad.layout is torch.strided else grad.to_dense()


def check_kept_values(runs: Runs) -> Iterator[Finding]:
    """Run nothing new: compare parameters and buffers after a training forward on 1 and on n GPUs.

    Leave out tensors that forward replaces by new ones, which ``check_state`` reports.
    """
    mode = runs.mode
    one, many = mode.one, mode.many
    if not mode.training or mode.random or one.model is None or many.model is None:
        return
    for what in ("buffers", "parameters"):
        ours, theirs = (getattr(model, f"named_{what}")() for model in (one.model, many.model))
        others = dict(theirs)
        pairs = {name: (tensor, others[name]) for name, tensor in ours if name not in one.replaced}
        gaps = {name: difference(*pair) for name, pair in pairs.items() if not mode.same(*pair)}
        if gaps:
            gap = gap_text(max(gaps.values()))
            yield KINDS[f"kept_from_one_gpu.{what}"](list_some(list(gaps)), gap=gap, gpus=runs.gpus)
        elif pairs:
            runs.say_compared(PHRASES["kept"](count=len(pairs), what=PHRASES[what]()), 0.0, True)


def measure_training_step(runs: Runs) -> Iterator[Finding]:
    """Run a training step on n GPUs in the user's mode, and measure the memory on each GPU.

    Skip a model that fails on n GPUs. Adam's state is calculated (twice the weights), not measured. The memory of CUDA
    itself and of the caching allocator is not included.
    """
    if runs.mode.many.error is not None or not runs.trains or runs.has_error("shared_state"):
        return
    gc.collect()  # free tensors of earlier runs before measuring
    before = [torch.cuda.memory_allocated(k) for k in runs.ids]
    model = runs.as_given()
    for gpu in runs.ids:
        torch.cuda.reset_peak_memory_stats(gpu)
    try:
        runs.step(runs.subject.wrap_in_parallel(model, runs.ids))
    except Exception as error:
        if runs.subject.training and not is_explained(runs, error):
            yield _failure(runs, error)
        return
    peaks = [max(0, torch.cuda.max_memory_allocated(k) - before[k]) for k in runs.ids]
    weights = _bytes(*model.parameters(), *model.buffers())
    runs.memory = tuple(GpuMemory(f"cuda:{k}", 0 if k else weights, peak) for k, peak in enumerate(peaks))
    home, others = peaks[0], max(peaks[1:])
    if runs.capacity is not None:
        need = home + 2 * _bytes(*(p for p in model.parameters() if p.requires_grad))
        kind = KINDS["memory_fits"] if need <= runs.capacity else KINDS["memory_too_small"]
        yield kind(SOURCE, need=cuda_bytes(need), capacity=cuda_bytes(runs.capacity))
    if home > max(SMALL, 1.25 * others):
        yield KINDS["home_memory"](SOURCE, home=cuda_bytes(home), others=cuda_bytes(others))


def _failure(runs: Runs, error: Exception) -> Finding:
    if is_mix(error):
        return KINDS["fixed_device"].at_error(error)
    one_row = ".batch_norm" * ("more than 1 value per channel" in short_text(error))
    return KINDS["fails_in_training" + one_row].at_error(error, gpus=runs.gpus)


def _bytes(*tensors: Tensor) -> int:
    return sum(tensor.nbytes for tensor in tensors)
