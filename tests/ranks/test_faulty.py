"""Faulty scripts, drawn by a seed, end at once and name what was put in (``python tests/ranks/faulty.py 1000``: more)."""

import faulthandler
import sys

import faulty
import pytest


@pytest.fixture(autouse=True)
def no_hang():
    """A run that hangs ends the tests, with the tracebacks of all its threads."""
    faulthandler.dump_traceback_later(120, exit=True, file=sys.__stderr__)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "seed", range(2 * len(faulty.FAULTS)), ids=lambda seed: f"{faulty.made(seed).fault}-{seed}"
)
def test_it_ends_at_once_and_is_named(seed):
    assert faulty.problem(faulty.made(seed)) == ""


def test_the_same_number_is_the_same_script():
    assert faulty.made(5) == faulty.made(5)
    assert faulty.made(5).source != faulty.made(5 + len(faulty.FAULTS)).source
