"""Points want work: whatever leads round it earns none, and whatever does the work, however oddly, earns all."""

import ast
from contextlib import suppress

import engine
import pytest
import students

from labkit_classroom.assignment import fill_numbers, load
from labkit_classroom.folders import names
from labkit_classroom.sandbox.workers import Limits

WITHOUT_WORK, UNUSUAL = students.by_question("without_work.txt"), students.by_question("unusual.txt")


TOGETHER = 3  # tricks of other questions in one cell: with more, one often breaks what another needs
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


def preparations():
    """Yield (assignment, title, code) of tricks that change something when the cell runs, without the answer itself."""
    for row in WITHOUT_WORK:
        name, question, _, source = row.values
        asked = next(one for one in load(name).questions if one.id == question)
        with suppress(SyntaxError):
            lines = [
                ast.unparse(node)
                for node in ast.parse(fill_numbers(source, load(name).numbers(None))).body
                if getattr(node, "name", None) not in asked.defines
            ]
            code = "\n".join(lines)
            if "_exit" not in code and any(not line.startswith(("import ", "from ")) for line in lines):
                yield name, row.id, code


@pytest.mark.more
@pytest.mark.parametrize("question", [f"{name}.{one.id}" for name in names() for one in load(name).questions])
def test_tricks_of_other_questions_earn_nothing(question):
    """All preparations of other questions' tricks, some at a time, above the untouched cell."""
    name, _, id = question.partition(".")
    stub = next(one for one in load(name).questions if one.id == id).stub(engine.numbers_of(load(name), "s1"))
    honest = {part.id for part in marked(name, id, f"{stub}\npass").parts if part.score}
    tricks = [trick for trick in preparations() if not trick[1].startswith(f"{question}: ")]
    earned = {}
    for at in range(0, len(tricks), TOGETHER):
        group = tricks[at : at + TOGETHER]
        above = "\n".join(f"try: exec({code!r})\nexcept BaseException: pass" for *_, code in group)
        mark = marked(name, id, f"{above}\n{stub}")
        if more := {part.id for part in mark.parts if part.score} - honest:
            earned[", ".join(title for _, title, _ in group)] = more
    assert not earned
