"""What a forward does to the module."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor, nn

from ..findings.kind import listed
from ..findings.modules import (
    ATTRIBUTES_LOST,
    BATCH_NORM,
    BATCH_NORM_OF_FEW,
    MODULE_NOT_REGISTERED,
    SHARED_STATE,
)
from ..result import Finding
from ..runs import Runs, quiet
from ..state import StateWatch, unregistered_modules
from .failures import ON_ONE, failure_on_one
from .probe import probe

# Fewer values than this per channel and GPU make BatchNorm's statistics noise.
FEW = 16


@probe(*ON_ONE, ATTRIBUTES_LOST, SHARED_STATE, MODULE_NOT_REGISTERED, BATCH_NORM, BATCH_NORM_OF_FEW)
def state(runs: Runs) -> Iterator[Finding]:
    """Runs the model on one GPU in its own mode; compares what it holds before and after, and counts what norms get.

    What is changed in place deeper than three containers, or outside the module, is not seen, nor is a buffer
    that is changed in place.
    """
    model = runs.fresh(runs.subject.training)
    watch = StateWatch(model)
    used: list[str] = []
    for where, held in unregistered_modules(model).items():
        held.register_forward_pre_hook(lambda *_, where=where: used.append(where))
    seen = _values_seen_by_norms(model)
    try:
        with quiet(0):
            runs.inputs.of(model)
    except Exception as error:
        yield failure_on_one(runs, error)
        return
    changes = watch.changes()
    if changes.lost:
        yield ATTRIBUTES_LOST(listed(changes.lost))
    if changes.shared:
        yield SHARED_STATE(listed(changes.shared))
    if used:
        yield MODULE_NOT_REGISTERED(listed(list(dict.fromkeys(used))))
    if seen and runs.batch:
        name, values = min(seen.items(), key=lambda pair: pair[1])
        rows = min(runs.plan.sizes)
        values = values * rows // runs.batch
        kind = BATCH_NORM_OF_FEW if values < FEW else BATCH_NORM
        yield kind(name, rows=rows, batch=runs.batch, values=values)


def _values_seen_by_norms(model: nn.Module) -> dict[str, int]:
    """Fills with the values per channel that each BatchNorm in training mode gets in the forward that follows."""
    seen: dict[str, int] = {}

    def note(name: str) -> Callable[[nn.Module, tuple[Any, ...], Tensor], None]:
        def hook(module: nn.Module, given: tuple[Any, ...], out: Tensor) -> None:
            seen[name] = given[0].numel() // max(given[0].size(1), 1)

        return hook

    for name, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.training:
            module.register_forward_hook(note(name))
    return seen
