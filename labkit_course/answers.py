"""Judge a learner's answer to an exercise, and show a verdict with a hint about the misconception.

Notebooks name an exercise by its id, so that their code is the same in every language. Texts may contain `code` between
backticks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from inspect import isfunction

from labkit.base.texts import Text, text_function

from . import progress
from .exercise import find
from .judging import Unreadable, Unwritten
from .kinds import quote_value
from .lesson import current_lesson
from .names import advice_on
from .verdict_html import SIGNS, as_html, frame_html

_text = text_function(__file__)


@dataclass(frozen=True)
class ShownVerdict:
    """The verdict shown to the learner; ``right`` is None for no answer yet."""

    right: bool | None
    text: str
    solution: Solution | None = field(repr=False)  # None: the text includes the solution

    def __repr__(self) -> str:
        return f"{SIGNS[self.right]} {self.text}"

    def _repr_html_(self) -> str:
        solution = self.solution._repr_html_() if self.solution else ""
        return frame_html(f"<div>{as_html(repr(self))}</div>{solution}", self.right)


@dataclass(frozen=True)
class Solution:
    """The solution of an exercise, folded in the notebook; ``text`` is the solution itself."""

    exercise: str
    text: str

    def _repr_html_(self) -> str:
        title, text = _text("title"), as_html(self.text)
        return f"<details><summary>{title}</summary><div>{text}</div></details>"

    def __repr__(self) -> str:
        return _text("hidden", exercise=self.exercise)


def check(exercise: str, answer: object, **facts: int) -> ShownVerdict:
    """Judge ``answer``, show the verdict with the solution folded below, and save a right answer in the progress file.

    None, ..., a list of these, or a function that returns ... is no answer yet.

    facts   the numbers of the question, for questions with numbers (see :mod:`.predictions`).
    """
    found = find(exercise)
    facts = found.complete_facts(facts)
    several = answer if isinstance(answer, list) and answer else [answer]
    if all(one is None or one is ... for one in several):
        text = _text("unanswered")
        if several is answer:  # a list, as from two ranks: the exercise may say which entry is missing
            try:
                found.kind.read(answer)
            except Unreadable as refused:
                text = str(refused) or text
        return ShownVerdict(None, text, None)
    try:
        hint = found.hint(answer, **facts)
        right, text = hint is None or bool(hint.score), str(hint or "")
        progress.note(exercise, right)
    except Unwritten as refused:
        return ShownVerdict(None, str(refused), None)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # an answer of another kind, or an error: neither counts
        right, text = False, _explain_error(error, answer, found.kind.wanted)
    solution = Solution(exercise, found.solution(**facts))
    if not right:
        return ShownVerdict(False, text, solution)
    # Say the solution after a prediction; fold it after an exercise, to compare with the learner's own.
    asks = found.asks
    why = text or (solution.text if asks else found.explanation())
    return ShownVerdict(True, _text("right", why=why), None if asks else solution)


def reveal(exercise: str, **facts: int) -> Solution:
    """Return the solution of an exercise, folded in a notebook; ``reveal(id).text`` is the text."""
    found = find(exercise)
    return Solution(exercise, found.solution(**found.complete_facts(facts)))


def _explain_error(error: BaseException, answer: object, wanted: Text) -> str:
    """Return a hint on an answer that could not be judged; ``wanted`` describes the kind of answer."""
    if isinstance(error, Unreadable):
        return str(error) or _text("asks", wanted=wanted, answer=quote_value(answer))
    # From the learner's code, or a judge that cannot handle the object. Say what kind of answer is wanted where it may
    # not have been callable as asked.
    call, facts = _quote_call(answer, error), {"error": _describe_error(error)}
    if call:
        raised = _text("raised_in", **facts, call=call)
    elif isinstance(error, TypeError):
        raised = _text("raised", **facts, wanted=wanted)
    else:
        raised = _text("raised_alone", **facts)
    return "\n".join(filter(None, [raised, advice_on(error, current_lesson())]))


def _quote_call(answer: object, error: BaseException) -> str:
    """Return the call of the learner's function that raised ``error``, ``rows_of(gpu=7, rows=23)``, or ""."""
    code, place = answer.__code__ if isfunction(answer) else None, error.__traceback__
    while place and place.tb_frame.f_code is not code:
        place = place.tb_next
    if code is None or place is None:
        return ""
    given = [
        (name, quote_value(place.tb_frame.f_locals.get(name))[1:-1])
        for name in code.co_varnames[: code.co_argcount]
    ]
    said = ", ".join(f"{name}={value if len(value) <= 40 else '…'}" for name, value in given)
    return f"{code.co_name}({said})"


def _describe_error(error: BaseException) -> Text:
    """Return class and message of an error, or the class alone if it has no message or its ``__str__`` fails."""
    try:
        words = str(error)
    except Exception:
        words = ""
    if "Original Traceback" in words:  # from a replica's thread: the first line says which, the last why
        words = f"`{words.splitlines()[0]} {words.strip().splitlines()[-1]}`"
    name = type(error).__name__
    return Text(*(f"{name}{colon}{words}" if words else name for colon in (": ", "：")))
