"""What forward returns."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from ...base.language import say
from ...base.tree import is_dataclass, leaves
from ..findings.outputs import DATACLASS_OUTPUT, NOT_TENSORS
from ..result import Finding
from ..runs import Runs
from .probe import probe


@probe(NOT_TENSORS, DATACLASS_OUTPUT)
def outputs(runs: Runs) -> Iterator[Finding]:
    """Runs nothing new: looks for outputs that cannot be gathered, and whether 1 and n GPUs give the same tensors."""
    whole = runs.one.outputs
    # None first is what PyTorch passes through; beside tensors it is as good as any other.
    odd = [
        f"{path} ({type(leaf).__name__})"
        for path, leaf in leaves(whole, "output")
        if leaf is not None and not isinstance(leaf, Tensor)
    ]
    if odd:
        yield NOT_TENSORS(", ".join(odd[:4]), gpus=runs.gpus)
    elif is_dataclass(whole) and not isinstance(whole, dict):
        yield DATACLASS_OUTPUT(type(whole).__name__)
    if runs.agree:
        runs.say_compared(say(en="outputs", zh="输出"), 0.0, True)
