"""From answers to marks: every part of every question judged, each in a worker of its own."""

from __future__ import annotations

import hashlib
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from ..assignment import Assignment, Question
from ..draw import Draw, Numbers
from ..intake.answers import Note
from ..judging import Part
from ..verdict import Verdict
from ..wall.session import Ask, Session
from ..wall.workers import Bare, CannotStart, Limits, Template
from .marks import PartMark, QuestionMark

BUDGET = 180.0  # seconds on the clock for one submission, after which waits are cut short
_SHORT = 3.0  # what is then left for each answer


@dataclass
class Graded:
    """The marks of one submission. ``troubles``: what the teacher should know of how its code behaved."""

    questions: dict[str, QuestionMark] = field(default_factory=dict)
    troubles: list[Note] = field(default_factory=list)


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
        if question.unanswered(source, numbers):
            parts = [PartMark(part.id, 0.0, part.points) for part in question.parts]
            graded.questions[question.id] = QuestionMark(0.0, question.points, parts, "unanswered")
            continue
        assert source is not None
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
        parts, last = [], None
        for part in question.parts:
            if refused is not None:
                verdict = refused
            elif self.undefined and last is not None:
                verdict = last
            else:
                verdict = self._judge(part, draw(question.id, part.id).having(numbers))
            last = verdict
            score = min(1.0, max(0.0, float(verdict.score)))
            parts.append(PartMark(part.id, score, part.points, verdict.hint, verdict.en, verdict.zh))
        points = round(sum(mark.score * mark.points for mark in parts), 2)
        return QuestionMark(points, question.points, parts, "failed" if self.failed else "judged")

    def _judge(self, part: Part, draw: Draw) -> Verdict:
        left = BUDGET - (time.monotonic() - self.start)
        limits = self.limits if left > self.limits.clock else replace(self.limits, wall=max(left, _SHORT))
        with Session(self.template, self.sources, limits) as session:
            try:
                verdict = part.judge(Ask(session, limits), draw)
            except CannotStart:
                raise
            except Exception as error:  # a fault of the judge's, or of what it makes of an odd value
                self.failed = True
                self._tell("judge", part.id, f"{type(error).__name__}: {error}", traceback.format_exc())
                verdict = Verdict(
                    0.0,
                    "judge-error",
                    "this part could not be judged; your teacher has been told",
                    "这一项没能判分，已经告诉老师",
                )
            for why, told in session.troubles:
                self._tell(why, part.id, told)
            self.undefined = session.undefined
        return verdict

    def _tell(self, kind: str, part: str, told: str, more: str = "") -> None:
        where = f"{self.question.id}.{part}"
        en = f"{where}: {_WORDS_EN.get(kind, kind)}: {told}"
        zh = f"{where}：{_WORDS_ZH.get(kind, kind)}：{told}"
        self.troubles.append(
            Note(kind, en + (f"\n{more}" if more else ""), zh + (f"\n{more}" if more else ""))
        )


_WORDS_EN = {
    "cpu": "stopped, too much work",
    "wall": "stopped, no answer in time",
    "memory": "stopped, too much memory",
    "died": "the code ended its own process",
    "garbled": "what came back was no answer",
    "judge": "the judge itself failed",
}
_WORDS_ZH = {
    "cpu": "计算量过大，已终止",
    "wall": "迟迟没有结果，已终止",
    "memory": "占用内存过多，已终止",
    "died": "代码结束了自己的进程",
    "garbled": "返回的不是结果",
    "judge": "判分程序自身出错",
}


def fingerprint(assignment: Assignment) -> str:
    """The same for as long as the assignment's texts, drivers and judges are."""
    digest = hashlib.sha256()
    for path in sorted(assignment.folder.glob("*")):
        if path.suffix in (".py", ".txt"):
            digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]
