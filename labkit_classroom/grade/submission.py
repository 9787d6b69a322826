"""Grade a submission: judge the parts of each question in a new worker.

A file can also be graded without its class, as in continuous integration or before handing in.
"""

from __future__ import annotations

import ast
import hashlib
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from labkit.base.texts import texts_beside

from ..assignment import Assignment, load
from ..draw import Draw, Numbers
from ..folders import names
from ..intake.answers import assignments_of, claims_of
from ..intake.collecting import answers_of
from ..intake.document import MOST_BYTES, Document, read_document
from ..judging import RubricPart, share_kept
from ..messages import Problem, Remark, text_maker
from ..sandbox.isolation import CannotStart, SandboxServer, UnsandboxedServer, start_server
from ..sandbox.workers import AnswerSession, Limits
from ..source import is_unanswered, parse_source
from ..verdict import Hint
from .marks import PartMark, QuestionMark, StudentMark, current_time

BUDGET = 180.0  # seconds on the clock for one submission before waits are cut short
_SHORT = 3.0  # seconds left for each answer after that
_FAILED = "judge-error"  # the hint's id after a failure of the judge
_TEXTS = texts_beside(__file__)
_say_why = text_maker(Hint, __file__)


@dataclass(frozen=True)
class Graded:
    """The marks of one submission. ``troubles``: remarks on the behaviour of its code, for the teacher."""

    questions: dict[str, QuestionMark]
    troubles: list[Remark]


def draws(
    secret: bytes, student: str, assignment: str, answers: Mapping[str, str | None]
) -> Callable[[str], Draw]:
    """Return a function from a question to its draw, which depends on the student's answer.

    A changed answer gets other cases, because hints and errors reveal something of the cases.
    """
    return lambda question: Draw.from_secret(
        secret, "cases", student, assignment, question, answers.get(question) or ""
    )


def grade(
    assignment: Assignment,
    answers: Mapping[str, str | None],
    numbers: Numbers,
    draw: Callable[[str], Draw],
    workers: SandboxServer | UnsandboxedServer,
    limits: Limits | None = None,
) -> Graded:
    """Judge ``answers`` (question id -> source, None where there is none).

    draw  gives the draw of a question (see :func:`draws`). Each part begins it anew, so that parts share cases.
    """
    questions, troubles, end = dict[str, QuestionMark](), list[Remark](), time.monotonic() + BUDGET
    for question in assignment.questions:
        source, state = answers.get(question.id), "unanswered"
        if source is None or is_unanswered(source, question.stub(numbers)):
            parts = [PartMark(part.id, 0.0, part.points) for part in question.parts]
        else:
            before = [(need, text) for need in question.needs if (text := answers.get(need)) is not None]
            sources = [("prologue", assignment.prologue(numbers)), *before, (question.id, source)]
            solution = question.id, question.solution(numbers)
            with closing(
                AnswerSession(workers.worker, sources, limits or Limits(), question.without, question.apart)
            ) as session:
                cases = draw(question.id).with_numbers(numbers)
                parts = [
                    _judge_part(part, session, cases, end, solution, troubles) for part in question.parts
                ]
            state = "failed" if any(part.hint == _FAILED for part in parts) else "judged"
        points = round(sum(part.score * part.points for part in parts), 2)
        questions[question.id] = QuestionMark(points, question.points, parts, state)
    return Graded(questions, troubles)


def _judge_part(
    part: RubricPart, session: AnswerSession, draw: Draw, end: float, solution: tuple[str, str],
    troubles: list[Remark],
) -> PartMark:  # fmt: skip
    """Return the mark of one part; append remarks to ``troubles``. ``end``: the time from which waits are cut short."""

    def tell(kind: str, told: str) -> None:
        where, words = f"{part.question}.{part.id}", _TEXTS[kind]
        troubles.append(Remark(kind, f"{where}: {words.en}: {told}", f"{where}：{words.zh}：{told}"))

    usual, left = session.limits, end - time.monotonic()
    session.limits = usual if left > usual.clock else replace(usual, wall=max(left, _SHORT))
    hint, fault = _hint(part, session, draw)
    if fault:
        # Judge the solution, too: if it succeeds, the answer's reply is at fault, not the judge.
        right = [*session.sources[:-1], solution]
        with closing(replace(session, sources=right, troubles=[], _worker=None, _replies={})) as solved:
            failed = bool(_hint(part, solved, draw)[1])
        tell("judge" if failed else "odd", fault)
        hint = _say_why(_FAILED if failed else "no-value")
    for why, told in session.troubles:
        tell(why, told)
    session.troubles.clear()
    session.limits = usual
    return PartMark(part.id, share_kept(hint), part.points, *((hint.id, hint.en, hint.zh) if hint else ()))


def _hint(part: RubricPart, session: AnswerSession, draw: Draw) -> tuple[Hint | None, str]:
    """Return the judge's hint, and the judge's own error ("" without one)."""
    try:
        return part.judge(session.answer, draw.with_numbers(draw.numbers)), ""
    except CannotStart:
        raise
    except Exception as error:
        return None, f"{type(error).__name__}: {error}\n{traceback.format_exc()}"


def fingerprint(assignment: Assignment) -> str:
    """Return a digest of the assignment's texts, drivers and judges."""
    digest = hashlib.sha256()
    for path in sorted(assignment.folder.glob("*")):
        if path.suffix in (".py", ".txt"):
            digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def grade_file(path: Path, way: str, secret: bytes) -> tuple[Assignment, StudentMark]:
    """Grade a notebook on cases drawn from ``secret``; return its assignment and mark. Raise ValueError without one."""
    with open(path, "rb") as stream:
        document = read_document(stream.read(MOST_BYTES + 1))
    held, claims = assignments_of(document), claims_of(document)
    if not held or held[0] not in names():
        raise Problem(
            en=f"{path} holds none of the assignments that are known here ({', '.join(names())})",
            zh=f"{path} 不含这里认识的任何作业（{'、'.join(names())}）",
        )
    assignment = load(held[0])
    return assignment, grade_alone(document, assignment, way, secret, claims[0].student if claims else "-")


def grade_alone(
    document: Document, assignment: Assignment, way: str, secret: bytes, student: str
) -> StudentMark:
    """Grade a notebook outside a class, with the numbers in ``begin(...)``."""
    usual = assignment.numbers(None)
    numbers: Numbers = {**usual, **_read_own_numbers(document, usual)}
    answers = answers_of(assignment, numbers, document)
    draw = draws(secret, student, assignment.name, answers.answers)
    with closing(start_server(way, assignment.preload)) as workers:
        graded = grade(assignment, answers.answers, numbers, draw, workers)
    judged_by = fingerprint(assignment)
    return StudentMark(
        student, answers.digest, current_time(), graded.questions, answers.notes, graded.troubles, judged_by
    )


def _read_own_numbers(document: Document, usual: Numbers) -> dict[str, int | str]:
    """Read the numbers from the file's ``begin(...)``, except those of another type than usual."""
    found: dict[str, int | str] = {}
    for cell in document.cells:
        tree = parse_source(cell.source) if cell.code and "begin(" in cell.source else None
        for call in ast.walk(tree) if tree else ():
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "begin":
                for word in call.keywords:
                    value = word.value.value if isinstance(word.value, ast.Constant) else None
                    name = word.arg or ""
                    if isinstance(value, (int, str)) and type(value) is type(usual.get(name)):
                        found[name] = value
    return found
