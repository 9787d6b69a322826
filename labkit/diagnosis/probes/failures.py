"""Whether the model runs on one GPU, and what errors say."""

from __future__ import annotations

from collections.abc import Iterator

from ..errors import is_mix, line_of, short_text
from ..findings.failures import FAILS_ON_ONE, FIXED_DEVICE_ON_ONE, LOSS_FAILS
from ..findings.inputs import UNCUT_INPUT
from ..findings.kind import listed
from ..findings.modules import TENSOR_NOT_REGISTERED
from ..findings.outputs import DATACLASS_OUTPUT, NOT_TENSORS, RANDOM_OUTPUTS
from ..result import Finding
from ..runs import Runs
from .probe import probe

# What a forward that fails on one GPU may be told.
ON_ONE = (UNCUT_INPUT, FIXED_DEVICE_ON_ONE, FAILS_ON_ONE)


@probe(*ON_ONE, RANDOM_OUTPUTS, wants_outputs=False)
def alone(runs: Runs) -> Iterator[Finding]:
    """Runs the model in eval mode on one GPU, twice, with two seeds.

    Randomness that two seeds do not show (a branch that is rarely taken) is not seen.
    """
    if runs.one.error is not None:
        yield failure_on_one(runs, runs.one.error)
    elif runs.one.random:
        yield RANDOM_OUTPUTS()


def failure_on_one(runs: Runs, error: Exception) -> Finding:
    """What is said of a forward that fails on one GPU."""
    if is_mix(error) and (objects := runs.inputs.objects()):
        return UNCUT_INPUT(listed(objects))
    kind = FIXED_DEVICE_ON_ONE if is_mix(error) else FAILS_ON_ONE
    return kind(line_of(error), problem=short_text(error))


def known(runs: Runs, error: Exception) -> bool:
    """Whether a finding says already why ``error`` was raised."""
    if is_mix(error):
        return runs.has(TENSOR_NOT_REGISTERED)
    return runs.has(NOT_TENSORS, DATACLASS_OUTPUT, UNCUT_INPUT, LOSS_FAILS)
