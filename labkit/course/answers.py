"""Exercises that check themselves: an answer in, a verdict out, with a hint that names the misconception.

An exercise is declared once, in :mod:`.exercises`, with both languages side by side; notebooks name it by
its id, so that their code is the same in every language.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from html import escape

from ..language import get_language, say
from . import progress


@dataclass(frozen=True)
class Exercise:
    """``judge(answer)`` gives None for a right answer, else the hint; ``solution()`` the worked answer."""

    id: str
    judge: Callable[[object], str | None]
    solution: Callable[[], str]


EXERCISES: dict[str, Exercise] = {}


@dataclass(frozen=True)
class Verdict:
    """What the learner sees after an answer."""

    id: str
    right: bool | None
    text: str

    def __repr__(self) -> str:
        sign = {True: "✓", False: "✗", None: "…"}[self.right]
        return f"{sign} {self.text}"


def check(exercise: str, answer: object) -> Verdict:
    """Judge ``answer``; None (or ...) counts as not answered yet.

    A right answer is noted in the learner's progress file (see :mod:`labkit.course.progress`).
    """
    found = _find(exercise)
    if answer is None or answer is ...:
        return Verdict(
            exercise,
            None,
            say(
                en="Not answered yet: replace None with your answer and run the cell again.",
                zh="还没有作答：把 None 换成你的答案，再运行一次这个单元格。",
            ),
        )
    try:
        hint = found.judge(answer)
    except Exception as error:  # an answer of any type must get a hint, not a traceback from our code
        hint = say(
            en=f"this answer could not be judged ({type(error).__name__}: {error}); "
            "what type does the question ask for?",
            zh=f"无法判断这个答案（{type(error).__name__}：{error}）；题目要的是什么类型？",
        )
    if hint is None:
        progress.note(exercise)
        return Verdict(exercise, True, say(en="Right.", zh="正确。"))
    return Verdict(exercise, False, hint)


@dataclass(frozen=True)
class Hidden:
    """A solution that stays folded until the reader opens it."""

    solution: str
    language: str

    def _repr_html_(self) -> str:
        title = "Show the answer" if self.language == "en" else "查看答案"
        return f"<details><summary>{title}</summary><p>{escape(self.solution)}</p></details>"

    def __repr__(self) -> str:
        return (
            "(answer hidden; print(_.solution) shows it)"
            if self.language == "en"
            else "（答案已折叠；运行 print(_.solution) 查看）"
        )


def reveal(exercise: str) -> Hidden:
    """The solution of an exercise, folded; ``reveal(id).solution`` is its text."""
    found = _find(exercise)
    return Hidden(found.solution(), get_language())


def _find(exercise: str) -> Exercise:
    from . import exercises  # noqa: F401 (fills EXERCISES; it needs this module first)

    if exercise not in EXERCISES:
        raise KeyError(f"no exercise {exercise!r}; there are {', '.join(sorted(EXERCISES))}")
    return EXERCISES[exercise]


def declare(id: str, judge: Callable[[object], str | None], solution: Callable[[], str]) -> None:
    """Add an exercise."""
    EXERCISES[id] = Exercise(id, judge, solution)
