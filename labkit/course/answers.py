"""Exercises that check themselves: an answer in, a verdict out, with a hint that names the misconception.

An exercise is declared once, in :mod:`.exercises`, with both languages side by side; notebooks name it by
its id, so that their code is the same in every language. Texts may hold `code` between backticks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ..base.language import say
from ..base.texts import Text
from . import progress
from .exercise import find
from .judging import Unreadable
from .kinds import shown
from .lesson import begun
from .names import word_on
from .words import SIGNS, as_html, framed


@dataclass(frozen=True)
class Shown:
    """The verdict that the learner sees after an answer; ``right`` is None when there is none yet."""

    right: bool | None
    text: str
    solution: Solution | None = field(repr=False)  # None where the text has said it already

    def __repr__(self) -> str:
        return f"{SIGNS[self.right]} {self.text}"

    def _repr_html_(self) -> str:
        solution = self.solution._repr_html_() if self.solution else ""
        return framed(f"<div>{as_html(repr(self))}</div>{solution}", self.right)


@dataclass(frozen=True)
class Solution:
    """The answer to an exercise, folded until the reader opens it; ``text`` is the answer itself."""

    text: str
    title: str
    hidden: str

    def _repr_html_(self) -> str:
        return f"<details><summary>{self.title}</summary><div>{as_html(self.text)}</div></details>"

    def __repr__(self) -> str:
        return self.hidden


def check(exercise: str, answer: object, **facts: int) -> Shown:
    """Judge ``answer``; None, ... or a list of these is no answer yet. The solution is folded below the verdict.

    facts   the numbers that the question was asked with, for those that take some (see :mod:`.predictions`).

    A right answer is noted in the learner's progress file (see :mod:`labkit.course.progress`).
    """
    found = find(exercise)
    facts = found.checked(facts)
    solution = reveal(exercise, **facts)
    several = answer if isinstance(answer, list) and answer else [answer]
    if all(one is None or one is ... for one in several):
        text = say(
            en="Not answered yet: replace `None` with your answer and run the cell again.",
            zh="还没有作答：把 `None` 换成你的答案，再运行一次这个单元格。",
        )
        if several is answer:  # an answer made elsewhere, as on two ranks: the exercise may know where
            try:
                found.kind.read(answer)
            except Unreadable as refused:
                text = str(refused) or text
        return Shown(None, text, solution)
    hint, counts = judged(answer, lambda answer: found.hint(answer, **facts), found.kind.wanted)
    if counts:
        progress.note(exercise, hint is None)
    if hint is None:
        right = say(en="Right.", zh="正确。")
        # After a prediction the solution says why; whoever has just written one compares it with another way.
        said = found.solution(**facts) if found.asks else found.why()
        return Shown(True, f"{right} {said}", None if found.asks else solution)
    return Shown(False, hint, solution)


def reveal(exercise: str, **facts: int) -> Solution:
    """The solution of an exercise, folded; ``reveal(id).text`` is the text itself."""
    found = find(exercise)
    facts = found.checked(facts)
    return Solution(
        found.solution(**facts),
        say(en="Show the answer", zh="查看答案"),
        say(
            en=f'(answer hidden; print(reveal("{exercise}").text) shows it)',
            zh=f'（答案已折叠；print(reveal("{exercise}").text) 可以查看）',
        ),
    )


def judged(answer: object, hint: Callable[[object], object | None], wanted: Text) -> tuple[str | None, bool]:
    """(the hint on ``answer`` in words, None if it is right; whether it was an answer at all).

    An answer that is of another kind than what is ``wanted``, or that raises an error, was a slip of the pen.
    """
    try:
        found = hint(answer)
        return None if found is None else str(found), True
    except Unreadable as refused:
        asks = say(
            en=f"the question asks for {wanted}; this is {shown(answer)}",
            zh=f"这道题要的是{wanted}；现在给的是 {shown(answer)}",
        )
        return str(refused) or asks, False
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # the learner's own code, or an object that no judge thought of
        raised = say(
            en=f"trying this answer raised {_named(error, ': ')}. The question asks for {wanted}",
            zh=f"试用这个答案时出现 {_named(error, '：')}。这道题要的是{wanted}",
        )
        return "\n".join(filter(None, [raised, word_on(error, begun())])), False


def _named(error: BaseException, colon: str) -> str:
    """The error's type and words, of which some have none, and some an odd ``__str__``."""
    try:
        words = str(error)
    except Exception:
        words = ""
    return f"{type(error).__name__}{colon}{words}" if words else type(error).__name__
