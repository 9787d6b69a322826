"""The model as it stands, before anything is run."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from ..findings.kind import listed
from ..findings.modules import (
    COMPILED_MODEL,
    LAZY_MODULES,
    NESTED_PARALLEL,
    PARAMETER_NOT_REGISTERED,
    SEVERAL_DEVICES,
)
from ..result import Finding
from ..runs import Runs
from ..state import unregistered_tensors
from .probe import probe


@probe(
    COMPILED_MODEL,
    SEVERAL_DEVICES,
    NESTED_PARALLEL,
    PARAMETER_NOT_REGISTERED,
    LAZY_MODULES,
    wants_outputs=False,
)
def model(runs: Runs) -> Iterator[Finding]:
    """Runs nothing: looks at what kind of module it is, where it was, and what it holds.

    Parameters that only a closure or a global variable holds are not seen.
    """
    subject = runs.subject
    if subject.compiled:
        yield COMPILED_MODEL()
    if len(subject.places) > 1:
        yield SEVERAL_DEVICES(", ".join(subject.places))
    if subject.wrapped:
        yield NESTED_PARALLEL(listed(subject.wrapped))
    for where, tensor in unregistered_tensors(subject.model).items():
        if isinstance(tensor, nn.Parameter):
            yield PARAMETER_NOT_REGISTERED(where)
    if subject.lazy:
        yield LAZY_MODULES()
