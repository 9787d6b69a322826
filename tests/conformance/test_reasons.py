"""Why some of PyTorch's own tests fail: each reason stands in the documentation, or says why."""

import importlib.util
import re
from pathlib import Path

import pytest

from labkit_ranks import fidelity as ranks
from simgpu import fidelity

_spec = importlib.util.spec_from_file_location("pytorch_ranks", Path(__file__).with_name("pytorch_ranks.py"))
_spec.loader.exec_module(theirs := importlib.util.module_from_spec(_spec))
own = theirs.own
SINGLE, RANKS = fidelity.PARTS, fidelity.PARTS + ranks.PARTS
REASONS = [(reason, SINGLE) for reason in own.reasons()]
REASONS += [(reason, RANKS) for reason in own.reasons(theirs.REASONS)]


@pytest.mark.parametrize(("reason", "parts"), REASONS)
def test_a_reason_is_a_row_of_the_documentation_or_says_why(reason, parts):
    assert reason.keys() <= {"category", "row", "why", "test", "error"}
    assert reason.keys() & {"test", "error"}
    if reason["category"] == own.NAMED:
        assert reason["row"] in {what for what, _, _ in parts}
    else:
        assert reason["category"] in (own.HARDWARE, own.VERSION)
        assert reason["why"]
    for pattern in ("test", "error"):
        re.compile(reason.get(pattern, ""))
