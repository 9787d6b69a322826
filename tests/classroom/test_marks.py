"""Marks are right: solutions get them all, untouched cells none, and typical mistakes lose what the rubric says."""

from functools import cache

import engine
import pytest
import students

from labkit_classroom.assignment import fill_numbers, load
from labkit_classroom.folders import names
from labkit_course import glossary

assignment_of = cache(load)
WRONG = {name: students.wrong_answers(name) for name in names()}


def lost(mark):
    """part id -> (hint, score) of the parts that are not full; every hint has words in both languages."""
    for part in mark.parts:
        assert (part.hint is None) == (part.score == 1) == (not part.en) == (not part.zh)
        if part.hint not in (None, "raised", "kind"):
            assert not glossary.problems(part.en, part.zh)
    return {part.id: (part.hint, part.score) for part in mark.parts if part.score < 1}


def graded(name, question, source, student="s1"):
    """What one answer of a student loses."""
    assignment = assignment_of(name)
    source = fill_numbers(source, engine.numbers_of(assignment, student))
    mark = engine.marked(assignment, {question: source}, student)[question]
    assert mark.state == "judged"
    return lost(mark)


@pytest.mark.parametrize("name", names())
def test_the_solutions_get_all_points(name):
    assignment, student = assignment_of(name), "20230001"
    numbers = engine.numbers_of(assignment, student)
    answers = {question.id: question.solution(numbers) for question in assignment.questions}
    marks = engine.marked(assignment, answers, student)
    assert {id: lost(mark) for id, mark in marks.items()} == dict.fromkeys(answers, {})
    assert sum(mark.points for mark in marks.values()) == assignment.points


@pytest.mark.parametrize("name", names())
def test_the_untouched_edition_gets_nothing(name):
    assignment = assignment_of(name)
    numbers = engine.numbers_of(assignment, "s")
    answers = {question.id: question.stub(numbers) + "\n# not yet" for question in assignment.questions}
    marks = engine.marked(assignment, answers, "s")
    assert {mark.state for mark in marks.values()} == {"unanswered"}
    assert {mark.points for mark in marks.values()} == {0}


def mistakes():
    """Yield parameters of a test: those after the first with the same lost parts and hints are for `make test-more`."""
    seen = set()
    for name in WRONG:
        for title, (question, loses, _) in WRONG[name].items():
            shown = {(name, question, part, str(hint)) for part, hint in loses.items()}
            yield pytest.param(name, title, marks=pytest.mark.more if shown <= seen else ())
            seen |= shown


@pytest.mark.parametrize(("name", "title"), list(mistakes()))
def test_a_mistake_costs_what_the_rubric_says(name, title):
    question, loses, source = WRONG[name][title]
    said = {part: hint if isinstance(hint, tuple) else (hint, 0.0) for part, hint in loses.items()}
    assert graded(name, question, source) == said


@pytest.mark.parametrize("name", names())
def test_there_are_enough_mistakes_in_every_question(name):
    asked = [question for question, _, _ in WRONG[name].values()]
    assert len(asked) >= 12
    assert {question.id for question in assignment_of(name).questions} == set(asked)
    lost = {(question, part) for question, loses, _ in WRONG[name].values() for part in loses}
    parts = {(question.id, part.id) for question in assignment_of(name).questions for part in question.parts}
    assert lost == parts, "each part is lost by some mistake"


@pytest.mark.parametrize("name", names())
def test_the_texts_use_the_terms(name):
    assignment = assignment_of(name)
    english, chinese = (assignment.cells(language, assignment.numbers(None)) for language in ("en", "zh"))
    for one, other in zip(english, chinese, strict=True):
        if one.role == "text":
            assert not glossary.problems(one.source, other.source), one.id
        elif one.role != "setup":
            assert one.source == other.source
