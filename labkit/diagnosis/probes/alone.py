"""The model by itself, on one GPU: what it is, whether it runs, what forward changes, and what it returns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor, nn

from ...base.tree import is_dataclass, leaves
from ..comparison import quiet
from ..errors import is_beyond, is_mix
from ..findings import failures, inputs, modules, outputs
from ..findings.kind import listed
from ..result import Finding
from ..runs import Runs
from ..state import StateWatch, unregistered_modules, unregistered_tensors
from .probe import probe

# Fewer values than this per channel and GPU make BatchNorm's statistics noise.
FEW = 16

# What a forward that fails on one GPU may be told.
_ON_ONE = (failures.NOT_SIMULATED, failures.FIXED_DEVICE_ON_ONE, failures.FAILS_ON_ONE)


@probe(
    modules.COMPILED_MODEL, modules.SEVERAL_DEVICES, modules.NESTED_PARALLEL, modules.PARAMETER_NOT_REGISTERED,
    modules.LAZY_MODULES,
    wants_outputs=False,
)  # fmt: skip
def model(runs: Runs) -> Iterator[Finding]:
    """Runs nothing: looks at what kind of module it is, where it was, and what it holds.

    Parameters that only a closure or a global variable holds are not seen.
    """
    subject = runs.subject
    if subject.compiled:
        yield modules.COMPILED_MODEL(listed(subject.compiled))
    if len(subject.places) > 1:
        yield modules.SEVERAL_DEVICES(", ".join(subject.places))
    if subject.wrapped:
        yield modules.NESTED_PARALLEL(listed(subject.wrapped))
    for where, tensor in unregistered_tensors(subject.model).items():
        if isinstance(tensor, nn.Parameter):
            yield modules.PARAMETER_NOT_REGISTERED(where)
    if subject.lazy:
        yield modules.LAZY_MODULES()


@probe(*_ON_ONE, wants_outputs=False)
def alone(runs: Runs) -> Iterator[Finding]:
    """Runs the model in eval mode on one GPU."""
    if runs.one.error is not None:
        yield _failure(runs.one.error)


@probe(
    *_ON_ONE, modules.ATTRIBUTES_LOST, modules.SHARED_STATE, modules.MODULE_NOT_REGISTERED, modules.BATCH_NORM,
    modules.BATCH_NORM_OF_FEW,
)  # fmt: skip
def state(runs: Runs) -> Iterator[Finding]:
    """Runs the model on one GPU in its own mode; compares what it holds before and after, and counts what norms get.

    What is changed in place deeper than three containers, or outside the module, is not seen, nor is a buffer
    that is changed in place.
    """
    model = runs.as_given()
    watch = StateWatch(model)
    used: list[str] = []
    for where, held in unregistered_modules(model).items():
        held.register_forward_pre_hook(lambda *_, where=where: used.append(where))
    seen = _values_seen_by_norms(model)
    try:
        with quiet(0):
            runs.inputs.of(model)
    except Exception as error:
        yield _failure(error)
        return
    lost, shared = watch.changes()
    if lost:
        yield modules.ATTRIBUTES_LOST(listed(lost))
    if shared:
        yield modules.SHARED_STATE(listed(shared))
    if used:
        yield modules.MODULE_NOT_REGISTERED(listed(list(dict.fromkeys(used))))
    if seen and runs.batch:
        name, values = min(seen.items(), key=lambda pair: pair[1])
        rows = min(runs.plan.sizes)
        values = values * rows // runs.batch
        kind = modules.BATCH_NORM_OF_FEW if values < FEW else modules.BATCH_NORM
        yield kind(name, rows=rows, batch=runs.batch, values=values)


@probe(outputs.NOT_TENSORS, outputs.DATACLASS_OUTPUT, outputs.RANDOM_OUTPUTS, asked="each")
def returned(runs: Runs) -> Iterator[Finding]:
    """Runs nothing new: looks for outputs that cannot be gathered, and whether 1 and n GPUs give the same tensors."""
    whole = runs.one.outputs
    # None first is what PyTorch passes through; beside tensors it is as good as any other.
    odd = [
        f"{path} ({type(leaf).__name__})"
        for path, leaf in leaves(whole, "output")
        if leaf is not None and not isinstance(leaf, Tensor)
    ]
    if odd:
        yield outputs.NOT_TENSORS(", ".join(odd[:4]), gpus=runs.gpus)
    elif is_dataclass(whole) and not isinstance(whole, dict):
        yield outputs.DATACLASS_OUTPUT(type(whole).__name__)
    if runs.agree and runs.random:
        yield outputs.RANDOM_OUTPUTS()
    if runs.agree:
        runs.say_outputs()


def known(runs: Runs, error: Exception) -> bool:
    """Whether a finding says already why ``error`` was raised."""
    if is_mix(error):
        return runs.has(modules.TENSOR_NOT_REGISTERED)
    return runs.has(outputs.NOT_TENSORS, outputs.DATACLASS_OUTPUT, inputs.UNCUT_INPUT, failures.LOSS_FAILS)


def _failure(error: Exception) -> Finding:
    """What is said of a forward that fails on one GPU."""
    if is_beyond(error):
        return failures.NOT_SIMULATED.of(error)
    return (failures.FIXED_DEVICE_ON_ONE if is_mix(error) else failures.FAILS_ON_ONE).of(error)


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
