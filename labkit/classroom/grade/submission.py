"""Grades one submission: judges every part of every question, each in a worker of its own."""

from __future__ import annotations

import hashlib
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace

from ...base.texts import texts_beside
from ..assignment import Assignment, Question
from ..draw import Draw, Numbers
from ..judging import Part, share_kept
from ..source import unanswered
from ..verdict import Hint
from ..wall.session import Session
from ..wall.templates import Bare, CannotStart, Template
from ..wall.workers import Limits
from ..words import Note
from .marks import PartMark, QuestionMark

BUDGET = 180.0  # seconds on the clock for one submission, after which waits are cut short
_SHORT = 3.0  # what is then left for each answer
_TEXTS = texts_beside(__file__)


@dataclass
class Graded:
    """The marks of one submission. ``troubles``: what the teacher should know of how its code behaved."""

    questions: dict[str, QuestionMark] = field(default_factory=dict)
    troubles: list[Note] = field(default_factory=list)


def draws(secret: bytes, student: str, assignment: str) -> Callable[[str, str], Draw]:
    """Gives the draw of a question and a part, which is the same for a student whenever they are graded."""
    return lambda question, part: Draw.of(secret, "cases", student, assignment, question, part)


def grade(
    assignment: Assignment,
    answers: Mapping[str, str | None],
    numbers: Numbers,
    draw: Callable[[str, str], Draw],
    template: Template | Bare,
    limits: Limits | None = None,
) -> Graded:
    """Judge ``answers`` (question id -> source, None where there is none).

    draw  the draw for a question and a part: the same cases for the same student, unknown to anybody else.
    """
    graded = Graded()
    start = time.monotonic()
    for question in assignment.questions:
        source = answers.get(question.id)
        if source is None or unanswered(source, question.stub(numbers)):
            parts = [PartMark(part.id, 0.0, part.points) for part in question.parts]
            graded.questions[question.id] = QuestionMark(0.0, question.points, parts, "unanswered")
            continue
        before = [(need, text) for need in question.needs if (text := answers.get(need)) is not None]
        sources = [("prologue", assignment.prologue(numbers)), *before, (question.id, source)]
        judged = _Judged(question, sources, template, limits or Limits(), start, graded.troubles)
        graded.questions[question.id] = judged.mark(draw, numbers)
    return graded


@dataclass
class _Judged:
    """One question of one submission."""

    question: Question
    sources: list[tuple[str, str]]
    template: Template | Bare
    limits: Limits
    start: float
    troubles: list[Note]
    failed: bool = False
    undefined: bool = False  # running the answer ended its process: it will do so again

    def mark(self, draw: Callable[[str, str], Draw], numbers: Numbers) -> QuestionMark:
        question = self.question
        refused = question.refused(self.sources[-1][1])
        parts: list[PartMark] = []
        hint: Hint | None = None
        for part in question.parts:
            if not self.undefined:
                hint = refused or self._judge(part, draw(question.id, part.id).having(numbers))
            told = (hint.id, hint.en, hint.zh) if hint else ()
            parts.append(PartMark(part.id, share_kept(hint), part.points, *told))
        points = round(sum(mark.score * mark.points for mark in parts), 2)
        return QuestionMark(points, question.points, parts, "failed" if self.failed else "judged")

    def _judge(self, part: Part, draw: Draw) -> Hint | None:
        left = BUDGET - (time.monotonic() - self.start)
        limits = self.limits if left > self.limits.clock else replace(self.limits, wall=max(left, _SHORT))
        with closing(Session(self.template, self.sources, limits, self.question.without)) as session:
            try:
                hint = part.judge(session.answer, draw)
            except CannotStart:
                raise
            except Exception as error:  # a fault of the judge's, or of what it makes of an odd value
                self.failed = True
                self._tell("judge", part.id, f"{type(error).__name__}: {error}\n{traceback.format_exc()}")
                hint = Hint("judge-error", _TEXTS["not-judged",].en, _TEXTS["not-judged",].zh)
            for why, told in session.troubles:
                self._tell(why, part.id, told)
            self.undefined = session.undefined
        return hint

    def _tell(self, kind: str, part: str, told: str) -> None:
        where, words = f"{self.question.id}.{part}", _TEXTS[kind,]
        self.troubles.append(Note(kind, f"{where}: {words.en}: {told}", f"{where}：{words.zh}：{told}"))


def fingerprint(assignment: Assignment) -> str:
    """A digest of the assignment's texts, drivers and judges: if one of them changes, it changes."""
    digest = hashlib.sha256()
    for path in sorted(assignment.folder.glob("*")):
        if path.suffix in (".py", ".txt"):
            digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]
