"""Exercises that check themselves: an answer in, a verdict out, with a hint that names the misconception.

An exercise is declared once, in :mod:`.exercises`, with both languages side by side; notebooks name it by
its id, so that their code is the same in every language. Texts may hold `code` between backticks.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from html import escape
from itertools import islice
from operator import index

from ..base.language import say
from . import progress


@dataclass(frozen=True)
class Exercise:
    """``judge(answer)`` gives None for a right answer, else the hint; ``solution()`` the worked answer.

    wanted()   what an answer looks like ("a whole number"), said when one cannot be read at all.
    """

    id: str
    judge: Callable[[object], str | None]
    wanted: Callable[[], str]
    solution: Callable[[], str]


class Unreadable(Exception):
    """The answer is not of the kind that the question asks for."""


_EXERCISES: dict[str, Exercise] = {}


def exercise(id: str, *, wanted: Callable[[], str], solution: Callable[[], str]) -> Callable:
    """Declare an exercise: the decorated function is its ``judge``."""

    def declare(judge: Callable[[object], str | None]) -> Callable[[object], str | None]:
        if id in _EXERCISES:
            raise ValueError(f"there are two exercises {id!r}")
        _EXERCISES[id] = Exercise(id, judge, wanted, solution)
        return judge

    return declare


def every() -> dict[str, Exercise]:
    """All exercises of the course by id."""
    from . import exercises  # noqa: F401 (fills the table; it needs this module first)

    return _EXERCISES


@dataclass(frozen=True)
class Verdict:
    """What the learner sees after an answer; ``right`` is None when there is none yet."""

    id: str
    right: bool | None
    text: str
    solution: Solution = field(repr=False)

    def __repr__(self) -> str:
        sign = {True: "✓", False: "✗", None: "…"}[self.right]
        return f"{sign} {self.text}"

    def _repr_html_(self) -> str:
        colour = {True: "#1a7f37", False: "#bc4c00", None: "#8c959f"}[self.right]
        return (
            f'<div style="border-left:4px solid {colour};padding:2px 0 2px 12px">'
            f"<div>{_html(repr(self))}</div>{self.solution._repr_html_()}</div>"
        )


@dataclass(frozen=True)
class Solution:
    """The answer to an exercise, folded until the reader opens it; ``text`` is the answer itself."""

    id: str
    text: str
    title: str
    hidden: str

    def _repr_html_(self) -> str:
        return f"<details><summary>{self.title}</summary><div>{_html(self.text)}</div></details>"

    def __repr__(self) -> str:
        return self.hidden


def check(exercise: str, answer: object) -> Verdict:
    """Judge ``answer``; None (or ...) counts as not answered yet. The solution is folded below the verdict.

    A right answer is noted in the learner's progress file (see :mod:`labkit.course.progress`).
    """
    found = _find(exercise)
    solution = reveal(exercise)
    if answer is None or answer is ...:
        text = say(
            en="Not answered yet: replace `None` with your answer and run the cell again.",
            zh="还没有作答：把 `None` 换成你的答案，再运行一次这个单元格。",
        )
        return Verdict(exercise, None, text, solution)
    hint = _judged(found, answer)
    if hint is None:
        progress.note(exercise)
        return Verdict(exercise, True, say(en="Right.", zh="正确。"), solution)
    return Verdict(exercise, False, hint, solution)


def reveal(exercise: str) -> Solution:
    """The solution of an exercise, folded; ``reveal(id).text`` is the text itself."""
    return Solution(
        exercise,
        _find(exercise).solution(),
        say(en="Show the answer", zh="查看答案"),
        say(
            en=f'(answer hidden; print(reveal("{exercise}").text) shows it)',
            zh=f'（答案已折叠；print(reveal("{exercise}").text) 可以查看）',
        ),
    )


def _judged(found: Exercise, answer: object) -> str | None:
    try:
        return found.judge(answer)
    except Unreadable:
        return say(
            en=f"the question asks for {found.wanted()}; this is {_shown(answer)}",
            zh=f"这道题要的是{found.wanted()}；现在给的是 {_shown(answer)}",
        )
    except (Exception, SystemExit) as error:  # the learner's own code, or an object that no judge thought of
        return say(
            en=f"trying this answer raised {type(error).__name__}: {error}. The question asks for {found.wanted()}",
            zh=f"试用这个答案时出现 {type(error).__name__}：{error}。这道题要的是{found.wanted()}",
        )


def _find(exercise: str) -> Exercise:
    known = every()
    if exercise not in known:
        raise ValueError(f"exercise must be one of {', '.join(sorted(known))}; got {exercise!r}")
    return known[exercise]


def _shown(answer: object) -> str:
    text = f"`{answer!r}`"
    return text if len(text) <= 60 else f"{text[:56]}…` ({type(answer).__name__})"


def _html(text: str) -> str:
    """Text as HTML: `code` in its own letters, a fenced block as a block."""
    text = escape(text, quote=False)
    text = re.sub(r"```\n(.*?)\n```", r"<pre>\1</pre>", text, flags=re.DOTALL)
    return re.sub(r"`([^`\n]+)`", r"<code>\1</code>", text)


# How a judge reads an answer. Each refuses what it would have to guess at, and what is beyond every question:
# a hint repeats the answer, and a generator may never end.
_MOST_NUMBERS = 200
_GREATEST = 10**12


def whole(answer: object) -> int:
    """The answer as a whole number; 3.0 and a one-element tensor count, 3.9 and True do not."""
    if isinstance(answer, bool):
        raise Unreadable
    if hasattr(answer, "item") and getattr(answer, "numel", lambda: 1)() == 1:
        answer = answer.item()
    if isinstance(answer, float) and answer.is_integer():
        answer = int(answer)
    try:
        value = index(answer)  # type: ignore[arg-type]
    except TypeError:
        raise Unreadable from None
    if abs(value) > _GREATEST:
        raise Unreadable
    return value


def number(answer: object) -> float:
    """The answer as a number, which need not be whole; a one-element tensor counts, True does not."""
    if hasattr(answer, "item") and getattr(answer, "numel", lambda: 1)() == 1:
        answer = answer.item()
    if isinstance(answer, bool) or not isinstance(answer, (int, float)):
        raise Unreadable
    return float(answer)


def numbers(answer: object) -> list[int]:
    """The answer as a list of whole numbers; a single number is a list of one."""
    if isinstance(answer, (str, bytes, dict, set)):
        raise Unreadable
    try:
        values = list(islice(answer, _MOST_NUMBERS + 1))  # type: ignore[call-overload]
    except TypeError:
        return [whole(answer)]
    if len(values) > _MOST_NUMBERS:
        raise Unreadable
    return [whole(value) for value in values]


def device(answer: object) -> str:
    """The answer as a device's name: ``"cpu"``, ``"cuda:0"``; a torch.device counts."""
    text = str(answer).strip().lower()
    if not re.fullmatch(r"cpu|cuda(:\d+)?", text):
        raise Unreadable
    return "cuda:0" if text == "cuda" else text
