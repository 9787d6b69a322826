"""The table of what is simulated is the one in the documentation, and true."""

from pathlib import Path

import pytest
import torch

from labkit.machine import fidelity

DOCS = Path(__file__).parents[2] / "docs" / "simulated.md"


def test_the_documentation_is_what_the_code_says():
    written, made = DOCS.read_text("utf-8"), fidelity.table()
    if not torch.__version__.startswith("2.13"):
        # The list of functions is that of the pinned release; what is said of them holds for all.
        written, made = written.partition("## Functions")[0], made.partition("## Functions")[0]
    assert written == made, "python -m labkit.machine > docs/simulated.md"


def test_what_is_listed_as_absent_raises_and_as_answered_answers(gpus):
    assert len(fidelity.provided()) > 40
    for name in fidelity.missing():
        if not isinstance(
            getattr(torch._C, name, None), type
        ):  # torch puts placeholder classes in some places
            with pytest.raises(NotImplementedError, match=f"no torch._C.{name}"):
                getattr(torch._C, name)()
    for name in fidelity.provided():
        assert callable(getattr(torch._C, name))
