"""Exercises that check themselves: an answer in, a verdict out, with a hint that names the misconception.

An exercise is declared once, in :mod:`.exercises`, with both languages side by side; notebooks name it by
its id, so that their code is the same in every language. Texts may hold `code` between backticks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from labkit.base.texts import Text, texts_beside

from . import progress
from .exercise import find
from .judging import Unreadable, Unwritten
from .kinds import shown
from .lesson import begun
from .names import word_on
from .words import SIGNS, as_html, framed

_TEXTS = texts_beside(__file__)


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
    """Judge ``answer``; None, ..., a list of these or a function that returns ... is no answer yet.

    The solution is folded below the verdict on an answer.

    facts   the numbers that the question was asked with, for those that take some (see :mod:`.predictions`).

    A right answer is noted in the learner's progress file (see :mod:`labkit_course.progress`).
    """
    found = find(exercise)
    facts = found.checked(facts)
    several = answer if isinstance(answer, list) and answer else [answer]
    if all(one is None or one is ... for one in several):
        text = _TEXTS["unanswered",]()
        if several is answer:  # an answer made elsewhere, as on two ranks: the exercise may know where
            try:
                found.kind.read(answer)
            except Unreadable as refused:
                text = str(refused) or text
        return Shown(None, text, None)
    hint, counts = judged(answer, lambda answer: found.hint(answer, **facts), found.kind.wanted)
    if counts is None:
        return Shown(None, str(hint), None)
    if counts:
        progress.note(exercise, hint is None)
    solution = reveal(exercise, **facts)
    if hint is None:
        # After a prediction the solution says why; whoever has just written one compares it with another way.
        said = found.solution(**facts) if found.asks else found.why()
        return Shown(True, _TEXTS["right",](why=said), None if found.asks else solution)
    return Shown(False, hint, solution)


def reveal(exercise: str, **facts: int) -> Solution:
    """The solution of an exercise, folded; ``reveal(id).text`` is the text itself."""
    found = find(exercise)
    facts = found.checked(facts)
    return Solution(found.solution(**facts), _TEXTS["title",](), _TEXTS["hidden",](exercise=exercise))


def judged(
    answer: object, hint: Callable[[object], object | None], wanted: Text
) -> tuple[str | None, bool | None]:
    """Return the hint on ``answer`` in words, None if it is right, and whether it counts; None if nothing is written.

    An answer that is of another kind than what is ``wanted``, or that raises an error, does not count.
    """
    try:
        found = hint(answer)
        return None if found is None else str(found), True
    except Unreadable as refused:
        counts = None if isinstance(refused, Unwritten) else False
        return str(refused) or _TEXTS["asks",](wanted=wanted, answer=shown(answer)), counts
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # the learner's own code, or an object that no judge thought of
        raised = _TEXTS["raised",](error=_named(error), wanted=wanted)
        return "\n".join(filter(None, [raised, word_on(error, begun())])), False


def _named(error: BaseException) -> Text:
    """The error's type and words, of which some have none, and some an odd ``__str__``."""
    try:
        words = str(error)
    except Exception:
        words = ""
    name = type(error).__name__
    return Text(*(f"{name}{colon}{words}" if words else name for colon in (": ", "：")))
