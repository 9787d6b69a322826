"""Marks are right: solutions get them all, untouched cells none, and typical mistakes lose what the rubric says."""

import importlib.util
import sys
from pathlib import Path

import pytest

from labkit.classroom.assignment import filled, load, names
from labkit.classroom.draw import Draw
from labkit.course import glossary

sys.path.insert(0, str(Path(__file__).parent))
from in_process import judged  # noqa: E402

ASSIGNMENTS = {name: load(name) for name in names()}
QUESTIONS = [
    (name, question) for name, assignment in ASSIGNMENTS.items() for question in assignment.questions
]


def answers(name):
    """The module of students' answers to an assignment."""
    path = Path(__file__).parent / "wrong" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"wrong_{name}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


ANSWERS = {name: answers(name) for name in names()}
WRONG = [(name, title) for name, module in ANSWERS.items() for title in module.WRONG]
RIGHT = [(name, title) for name, module in ANSWERS.items() for title in getattr(module, "ALSO_RIGHT", {})]


def numbers_of(assignment, student):
    return assignment.numbers(Draw.of(b"a secret", student, assignment.name, "numbers"))


def graded(name, id, source, student):
    """part id -> (hint, score) of the parts that are not full; every hint has words in both languages."""
    assignment = ASSIGNMENTS[name]
    question = next(question for question in assignment.questions if question.id == id)
    numbers = numbers_of(assignment, student)
    found = judged(assignment, question, filled(source, numbers), student, numbers)
    for verdict in found.values():
        assert (verdict.hint is None) == (verdict.score == 1) == (not verdict.en) == (not verdict.zh)
        if verdict.hint not in (None, "raised", "kind"):
            assert not glossary.problems(verdict.en, verdict.zh)
    return {part: (verdict.hint, verdict.score) for part, verdict in found.items() if verdict.score < 1}


@pytest.mark.parametrize(("name", "question"), QUESTIONS, ids=lambda value: getattr(value, "id", value))
@pytest.mark.parametrize("student", ["20230001", "b"])
def test_a_solution_gets_all_points(name, question, student):
    numbers = numbers_of(ASSIGNMENTS[name], student)
    assert graded(name, question.id, question.solution(numbers), student) == {}


@pytest.mark.parametrize(("name", "question"), QUESTIONS, ids=lambda value: getattr(value, "id", value))
def test_the_untouched_cell_gets_nothing(name, question):
    found = graded(name, question.id, question.stub(numbers_of(ASSIGNMENTS[name], "s")), "s")
    assert {part: score for part, (_, score) in found.items()} == {part.id: 0 for part in question.parts}


@pytest.mark.parametrize(("name", "title"), WRONG)
def test_a_mistake_costs_what_the_rubric_says(name, title):
    question, loses, source = ANSWERS[name].WRONG[title]
    said = {part: hint if isinstance(hint, tuple) else (hint, 0.0) for part, hint in loses.items()}
    assert graded(name, question, source, "s1") == said


@pytest.mark.parametrize(("name", "title"), RIGHT)
def test_another_way_to_be_right_costs_nothing(name, title):
    question, source = ANSWERS[name].ALSO_RIGHT[title]
    assert graded(name, question, source, "s1") == {}


@pytest.mark.parametrize("name", names())
def test_there_are_enough_mistakes_in_every_question(name):
    asked = [question for question, _, _ in ANSWERS[name].WRONG.values()]
    assert len(asked) >= 12
    assert {question.id for question in ASSIGNMENTS[name].questions} == set(asked)
    lost = {(question, part) for question, loses, _ in ANSWERS[name].WRONG.values() for part in loses}
    parts = {(question.id, part.id) for question in ASSIGNMENTS[name].questions for part in question.parts}
    assert lost == parts, "each part is lost by some mistake"


@pytest.mark.parametrize("name", names())
def test_the_texts_use_the_terms(name):
    assignment = ASSIGNMENTS[name]
    english, chinese = (assignment.cells(language, assignment.numbers(None)) for language in ("en", "zh"))
    for one, other in zip(english, chinese, strict=True):
        if one.kind == "text":
            assert not glossary.problems(one.source, other.source), one.id
        elif one.role != "setup":
            assert one.source == other.source
