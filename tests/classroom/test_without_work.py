"""Points want work: whatever leads round it earns none, and whatever does the work, however oddly, earns all."""

import sys
from pathlib import Path

import pytest

from labkit_classroom.assignment import load

sys.path.insert(0, str(Path(__file__).parent))
import engine  # noqa: E402
import students  # noqa: E402

PRIMITIVES = load("primitives")
HERE = Path(__file__).parent


def by_question(name):
    """question: name -> the other fields of its heading, and the source."""
    return {
        f"{question}: {title}": (question, *rest) for title, question, *rest in students.sections(HERE / name)
    }


WITHOUT_WORK, UNUSUAL = by_question("without_work.txt"), by_question("unusual.txt")


@pytest.mark.parametrize("name", WITHOUT_WORK)
def test_no_points_without_work(name):
    question, honest, source = WITHOUT_WORK[name]
    whose, _, question = question.rpartition(".")
    mark = engine.marked(load(whose or "primitives"), {question: source}, "s1")[question]
    assert mark.state == "judged"
    earned = {part.id for part in mark.parts if part.score}
    assert earned <= set(honest.split()), {part.id: part.hint for part in mark.parts}


@pytest.mark.parametrize("name", UNUSUAL)
def test_whatever_does_the_work_earns_all(name):
    question, source = UNUSUAL[name]
    mark = engine.marked(PRIMITIVES, {question: source}, "s1")[question]
    assert {part.id: (part.hint, part.en) for part in mark.parts if part.hint} == {}


def test_there_are_enough_of_both():
    assert len(WITHOUT_WORK) >= 50
    assert len(UNUSUAL) >= 20
