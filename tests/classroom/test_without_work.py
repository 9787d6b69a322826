"""Points want work: whatever leads round it earns none, and whatever does the work, however oddly, earns all."""

import sys
from pathlib import Path

import pytest

from labkit_classroom.assignment import fill_numbers, load
from labkit_classroom.folders import names

sys.path.insert(0, str(Path(__file__).parent))
import engine  # noqa: E402
import students  # noqa: E402

HERE = Path(__file__).parent


def by_question(name):
    """question: name -> assignment, question, the other fields of its heading, and the source."""
    return {
        f"{question}: {title}": (
            *(["primitives", question] if "." not in question else question.split(".")),
            *rest,
        )
        for title, question, *rest in students.sections(HERE / name)
    }


WITHOUT_WORK, UNUSUAL = by_question("without_work.txt"), by_question("unusual.txt")


def marked(name, question, source):
    assignment = load(name)
    numbers = engine.numbers_of(assignment, "s1")
    return engine.marked(assignment, {question: fill_numbers(source, numbers)}, "s1")[question]


@pytest.mark.parametrize("name", WITHOUT_WORK)
def test_no_points_without_work(name):
    assignment, question, honest, source = WITHOUT_WORK[name]
    mark = marked(assignment, question, source)
    assert mark.state == "judged"
    earned = {part.id for part in mark.parts if part.score}
    assert earned <= set(honest.split()), {part.id: part.hint for part in mark.parts}


@pytest.mark.parametrize("name", UNUSUAL)
def test_whatever_does_the_work_earns_all(name):
    mark = marked(*UNUSUAL[name])
    assert {part.id: (part.hint, part.en) for part in mark.parts if part.hint} == {}


def test_there_are_enough_of_both():
    assert len(WITHOUT_WORK) >= 105
    assert len(UNUSUAL) >= 115
    assert {assignment for assignment, *_ in UNUSUAL.values()} == set(names())
