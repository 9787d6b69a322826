"""Points want work: whatever leads round it earns none, and whatever does the work, however oddly, earns all."""

import re
import sys
from pathlib import Path

import pytest

from labkit.classroom.assignment import load

sys.path.insert(0, str(Path(__file__).parent))
import engine  # noqa: E402

PRIMITIVES = load("primitives")


def sections(name):
    """The sections of a text: a heading's fields, and what stands below it."""
    text = Path(__file__).with_name(name).read_text("utf-8")
    for heading, source in re.findall(r"^=== (.*)\n((?:(?!===).*\n)*)", text, re.MULTILINE):
        yield *heading.split(" | "), source


WITHOUT_WORK = {
    f"{question}: {name}": rest for name, *rest in sections("without_work.txt") for question in rest[:1]
}
UNUSUAL = {f"{question}: {name}": rest for name, *rest in sections("unusual.txt") for question in rest[:1]}


@pytest.mark.parametrize("name", WITHOUT_WORK)
def test_no_points_without_work(name):
    question, honest, source = WITHOUT_WORK[name]
    whose, _, question = question.rpartition(".")
    mark = engine.marked(load(whose or "primitives"), {question: source}, "s1")[question]
    assert mark.state == "judged"
    earned = {part.id for part in mark.parts if part.score}
    assert earned <= set(honest.split()), {part.id: part.hint for part in mark.parts}


# Of the many odd ways to be right `make test` tries every third.
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.more if at % 3 else ()) for at, name in enumerate(UNUSUAL)],
)
def test_whatever_does_the_work_earns_all(name):
    question, source = UNUSUAL[name]
    mark = engine.marked(PRIMITIVES, {question: source}, "s1")[question]
    assert {part.id: (part.hint, part.en) for part in mark.parts if part.hint} == {}


def test_there_are_enough_of_both():
    assert len(WITHOUT_WORK) >= 60
    assert len(UNUSUAL) >= 60
