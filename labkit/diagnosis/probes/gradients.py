"""Gradients on one GPU and on several."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from ...base.language import say
from ..compare import largest_gap, same, tolerance
from ..errors import line_of, short_text
from ..findings.failures import LOSS_FAILS
from ..findings.kind import gap_text
from ..findings.outputs import BIASED_LOSS, BIASED_LOSS_OF_EVEN_PIECES, GRADIENTS_DIFFER
from ..result import Finding
from ..runs import Runs
from .layout import biased_loss
from .outputs import outputs
from .probe import probe


@probe(LOSS_FAILS, BIASED_LOSS, BIASED_LOSS_OF_EVEN_PIECES, GRADIENTS_DIFFER, after=(outputs,))
def gradients(runs: Runs) -> Iterator[Finding]:
    """Runs forward and backward in eval mode on 1 and on n GPUs; compares the loss and every parameter's gradient.

    Asked only where the outputs agree. Without a loss of the user's own, a fixed weighted sum of the outputs stands
    for it; a gradient that is wrong in training mode alone is not seen.
    """
    if not runs.agree or not any(p.requires_grad for p in runs.subject.model.parameters()):
        return
    one, many = runs.fresh(training=False), runs.fresh(training=False)
    try:
        first, second = runs.step(one), runs.step(nn.DataParallel(many, runs.ids))
    except Exception as error:
        yield LOSS_FAILS(line_of(error), problem=short_text(error))
        return
    if first is None or second is None:
        return
    if runs.loss is not None and not same(first, second):
        yield biased_loss(runs, "loss", float(first), float(second.mean()))
    worst, name, agree = _worst_gap(one, many, tolerance(runs.one.least))
    runs.say_compared(say(en="gradients", zh="梯度"), worst, agree)
    if not agree:
        yield GRADIENTS_DIFFER(name, gap=gap_text(worst))


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
