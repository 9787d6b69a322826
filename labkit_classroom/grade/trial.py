"""Try an assignment before its release: the solution must get all points, an empty edition none, and each wrong answer
must lose points, the same ones for all students.

Wrong answers are files in its folder ``wrong``. Their names begin with the question, as in ``split.floor.py``.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from labkit.base.language import series
from labkit.base.texts import texts_beside

from ..assignment import Assignment, Question
from ..draw import Draw
from ..messages import Problem, Words
from ..sandbox.isolation import start_server
from .submission import draws, grade

_TEXTS = texts_beside(__file__)
_EDITIONS = 200  # number of editions whose numbers are compared


@dataclass(frozen=True)
class TrialResult:
    """The points of an answer for several students, how often each part lost points, and a warning, if any."""

    question: str
    title: str
    points: list[float]
    of: int
    lost: Counter[str]
    odd: Words | None = None


def try_answers(assignment: Assignment, way: str, students: int = 5) -> Iterator[TrialResult]:
    """Judge the solution, the empty edition and each wrong answer, for ``students`` with different numbers."""
    questions = {question.id: question for question in assignment.questions}
    wrong = [(path.name.split(".")[0], path) for path in sorted((assignment.folder / "wrong").glob("*.py"))]
    for id, path in wrong:
        if id not in questions:
            raise Problem(
                en=f"{path}: its name must begin with a question's, such as {assignment.questions[0].id}.floor.py",
                zh=f"{path}：文件名要以题目的名字开头，例如 {assignment.questions[0].id}.floor.py",
            )
    secret, workers = secrets.token_bytes(32), start_server(way, assignment.preload, [assignment.folder])

    def judge_answer(question: Question, title: str, source: str | None = None) -> TrialResult:
        points, lost, failed = [], Counter[str](), None
        for student in map(str, range(students)):
            numbers = assignment.numbers(Draw.from_secret(secret, student, assignment.name, "numbers"))
            solution = {one.id: one.solution(numbers) for one in assignment.questions}
            # Add a line: grading would skip the unchanged stub.
            given = {"solution": solution[question.id], "empty": question.stub(numbers) + "\npass"}
            answer = {need: solution[need] for need in question.needs} | {question.id: source or given[title]}
            draw = draws(secret, student, assignment.name, answer)
            graded = grade(assignment, answer, numbers, draw, workers)
            mark = graded.questions[question.id]
            points.append(mark.points)
            lost.update(part.id for part in mark.parts if part.score < 1)
            failed = failed or next((note for note in graded.troubles if note.kind == "judge"), None)
        found = TrialResult(question.id, title, points, question.points, lost)
        return replace(found, odd=Words(failed.en, failed.zh) if failed else _warn(found))

    try:
        for question in assignment.questions:
            yield judge_answer(question, "solution")
            yield judge_answer(question, "empty")
        for id, path in wrong:
            yield judge_answer(questions[id], path.name, path.read_text("utf-8"))
    finally:
        workers.close()


def _warn(found: TrialResult) -> Words | None:
    """Return a warning about an answer's points, or None."""
    full = sum(points >= found.of for points in found.points)
    some = [part for part, count in found.lost.items() if count < len(found.points)]
    if found.title in ("solution", "empty"):
        is_odd = found.lost if found.title == "solution" else any(found.points)
        key = found.title if is_odd else ""
    else:
        key = "never" if not found.lost else "sometimes" if full else "uneven" if some else ""
    facts = {"lost": series(found.lost), "full": full, "count": len(found.points), "some": series(some)}
    return _TEXTS[key].fill(facts) if key else None


def find_odd_numbers(assignment: Assignment) -> Iterator[Words]:
    """Yield warnings about the numbers of several editions."""
    lots = (Draw.from_secret(b"numbers", str(edition), assignment.name) for edition in range(_EDITIONS))
    drawn = [assignment.numbers(draw) for draw in lots]
    cells = [cell.source for language in ("en", "zh") for cell in assignment.cells(language, {})]
    for name in drawn[0]:
        if len({edition[name] for edition in drawn}) == 1:
            yield _TEXTS["constant"].fill({"name": name, "value": drawn[0][name]})
        if not any(f"{{{{{name}}}}}" in source for source in cells):
            yield _TEXTS["unused"].fill({"name": name})
    often = max(Counter(tuple(edition.items()) for edition in drawn).values())
    if drawn[0] and often > _EDITIONS // 4:
        yield _TEXTS["few"].fill({"often": often, "count": _EDITIONS})
