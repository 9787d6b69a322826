"""An exercise of a lesson as a part of an assignment.

In ``judges.py``::

    idle = exercise("idle", "03.idle", points=1, rows="rows", gpus="gpus")

The cell ``%% idle code answer`` then holds ``answer = ...``, and the student's numbers called ``rows`` and ``gpus`` are
those of the question. Values and functions are judged by the course's own judge, in the process that runs no student's
code: a function is called from there, through the worker.
"""

from __future__ import annotations

from typing import Any

from ..course.exercise import find
from ..course.judging import Unreadable
from ..course.kinds import shown
from . import lesson_drivers
from .draw import Draw
from .judging import Ask, Judge, Part
from .verdict import Hint
from .words import Problem, Words

# What hands the student's code a live model, or is handed one: no worker can be asked that through data.
_LIVE = {"04.call": "primitives, call", "06.repair": "crnn, repaired"}


def exercise(question: str, id: str, points: int, *, answer: str = "answer", **facts: int | str) -> Part:
    """Makes a part that is judged as exercise ``id`` of a lesson is.

    answer   the name that the answer cell defines.
    facts    the exercise's numbers, or names of the student's own numbers.

    Raises ValueError for an exercise that is not known, or whose answer is a live model.
    """
    if id in _LIVE:
        raise Problem(
            en=f"exercise {id} works with a live model, which cannot be judged from outside: take the question "
            f"of the assignment instead ({_LIVE[id]})",
            zh=f"练习 {id} 用的是活的模型，无法在外面判分：请改用作业里的题目（{_LIVE[id]}）",
        )
    found = find(id)
    what = found.texts[""] if found.asks and not found.facts else Words(f"Exercise {id}", f"练习 {id}")
    return Part(question, id.replace(".", "-"), points, what, _judge(id, answer, facts))


def _judge(id: str, answer: str, facts: dict[str, int | str]) -> Judge:
    def hints(ask: Ask, draw: Draw) -> Any:
        found = find(id)
        given = {name: draw.numbers[at] if isinstance(at, str) else at for name, at in facts.items()}
        numbers = found.checked(given)  # type: ignore[arg-type]  # it refuses what is no number
        value = ask(lesson_drivers.value, name=answer)
        if value == {"function": True}:

            def value(*arguments: Any) -> Any:
                return ask(lesson_drivers.call, name=answer, arguments=list(arguments))

        if value is None:
            yield Hint("nothing", "not answered", "没有作答")
        words: Hint | Words | None
        try:
            words = found.hint(value, **numbers)
        except Unreadable as unreadable:
            wanted = found.kind.wanted
            words = unreadable.words or Words(
                f"the question asks for {wanted.en}; this is {shown(value)}",
                f"这道题要的是{wanted.zh}；现在给的是 {shown(value)}",
            )
        if words is not None:
            yield Hint(id.replace(".", "-"), words.en, words.zh)

    return hints
