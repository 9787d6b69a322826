"""Sets a question's points by hand: an appeal, an answer given aloud. It counts until it is taken back."""

from __future__ import annotations

from difflib import get_close_matches

from ..assignment import Question
from ..handout.folder import ClassFolder
from ..handout.release import assignment_of
from ..words import Problem
from .marks import ByHand, Mark, now, read, writing

# In the place of points: what was given by hand is taken back, and the grading's points count again.
TAKE_BACK = "auto"


def mark_by_hand(folder: ClassFolder, student: str, question: str, points: str, why: str) -> Mark:
    """Give ``student`` these points for ``question`` and keep ``why``; returns the mark as it counts now.

    student   an id of the roster.
    question  a question's name, ``primitives.split`` or ``split``.
    points    a number from 0 to those of the question; :data:`TAKE_BACK` takes back what was given.

    Problem if there is no such student or question, the points are none, or there is no reason.
    """
    assignment = assignment_of(folder)
    if student not in folder.students:
        raise _unknown("student", "学生", student, list(folder.students))
    asked = {one.id: one for one in assignment.questions}
    found = asked.get(question.removeprefix(f"{assignment.name}."))
    if found is None:
        raise _unknown("question", "题目", question, list(asked))
    if not why.strip():
        raise Problem(
            en="say why: --why “…” stands beside the mark", zh="请写明理由：--why “……” 会显示在成绩旁边"
        )
    given = None if points == TAKE_BACK else _points(points, found)
    with writing(folder.marks) as add:
        before = read(folder.marks).get(student)
        add(ByHand(student, found.id, given, why.strip(), now(), before.digest if before else ""))
        return read(folder.marks)[student]


def _points(text: str, question: Question) -> float:
    try:
        points = float(text)
    except ValueError:
        points = -1
    if not 0 <= points <= question.points:
        raise Problem(
            en=f"the points for {question.id} must be a number from 0 to {question.points:g}, or {TAKE_BACK}, "
            f"got {text!r}",
            zh=f"{question.id} 的分数必须是 0 到 {question.points:g} 之间的数，或者 {TAKE_BACK}，现在是 {text!r}",
        )
    return points


def _unknown(kind: str, zh: str, name: str, known: list[str]) -> Problem:
    near = get_close_matches(name, known, 3, 0.5) or known[:8]
    return Problem(
        en=f"there is no {kind} {name!r}; there are {', '.join(near)}{' …' * (len(near) < len(known))}",
        zh=f"没有{zh} {name!r}；有的是 {'、'.join(near)}{' ……' * (len(near) < len(known))}",
    )
