"""Faulty scripts, drawn by a seed, end at once and name their fault; with a larger range there are more of them."""

import faulthandler
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

_spec = spec_from_file_location("faulty", Path(__file__).with_name("faulty.py"))
sys.modules["faulty"] = faulty = module_from_spec(_spec)
_spec.loader.exec_module(faulty)


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
