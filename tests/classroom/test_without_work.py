"""Points want work: whatever leads round it earns none, and whatever does the work, however oddly, earns all."""

import sys
from pathlib import Path

import pytest

from labkit_classroom.assignment import fill_numbers, load
from labkit_classroom.folders import names
from labkit_classroom.sandbox.workers import Limits

sys.path.insert(0, str(Path(__file__).parent))
import engine  # noqa: E402
import students  # noqa: E402

WITHOUT_WORK, UNUSUAL = students.by_question("without_work.txt"), students.by_question("unusual.txt")


# Two tricks make a replica wait for ever at the judge's pipe. A worker that runs but gets no processor has more time.
WAITS = Limits(wall=3.0)


def marked(name, question, source, limits=None):
    assignment = load(name)
    numbers = engine.numbers_of(assignment, "s1")
    return engine.marked(assignment, {question: fill_numbers(source, numbers)}, "s1", limits)[question]


@pytest.mark.parametrize(("assignment", "question", "honest", "source"), WITHOUT_WORK)
def test_no_points_without_work(assignment, question, honest, source):
    mark = marked(assignment, question, source, WAITS if "os.read" in source else None)
    assert mark.state == "judged"
    earned = {part.id for part in mark.parts if part.score}
    assert earned <= set(honest.split()), {part.id: part.hint for part in mark.parts}


@pytest.mark.parametrize(("assignment", "question", "source"), UNUSUAL)
def test_whatever_does_the_work_earns_all(assignment, question, source):
    mark = marked(assignment, question, source)
    assert {part.id: (part.hint, part.en) for part in mark.parts if part.hint} == {}


def test_there_are_enough_of_both():
    assert len(WITHOUT_WORK) >= 105
    assert len(UNUSUAL) >= 115
    assert {row.values[0] for row in UNUSUAL} == set(names())
