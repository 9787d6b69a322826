"""Make one small file of a student's notebook to hand in.

The notebook's metadata lists the questions, so that no other file is needed. No code is run.
"""

from __future__ import annotations

import ast
import re
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path

from labkit.base.files import write_whole
from labkit.base.language import series

from ..assignment import cell_as_json, to_json
from ..messages import Problem
from ..source import QuestionFacts, parse_source
from .answers import Answers, Claim, assignments_of, claims_of, read_answers
from .document import Document, read_document

# A notebook may have large outputs, which the file to hand in leaves out.
_MOST_BYTES = 500_000_000
_ID = re.compile(r"[\w@][\w.@-]{0,63}")


@dataclass(frozen=True)
class HandIn:
    """A notebook to hand in. ``claim``: its student, assignment and edition.

    answers    None if the metadata is lost, so that the questions are unknown.
    troubles   question id -> Python's message about a syntax error.
    """

    claim: Claim
    answers: Answers | None
    document: Document = field(repr=False)
    troubles: dict[str, str] = field(default_factory=dict)


def prepare(path: Path, student: str | None = None) -> HandIn:
    """Read the notebook ``path`` and its answers.

    student   the student's id, if the notebook has lost its labels.

    Raise Problem or OSError.
    """
    with open(path, "rb") as stream:
        document = read_document(stream.read(_MOST_BYTES + 1), _MOST_BYTES)
    named = assignments_of(document)
    if not named:
        raise Problem(
            en=f"{path} has no cells of an assignment: is it the notebook that your teacher gave you?",
            zh=f"{path} 里没有作业的单元格：这是老师发给你的那个笔记本吗？",
        )
    claim = _claim(claims_of(document), named[0], student)
    questions = _questions(document)
    answers = read_answers(document, named[0], questions) if questions else None
    troubles = {}
    for question, source in (answers.answers if answers else {}).items():
        try:
            ast.parse(source or "")
        except SyntaxError as error:
            line = (error.text or "").strip()
            troubles[question] = f"{error.msg}: {line}" if line else error.msg
        except (ValueError, RecursionError, MemoryError) as error:
            troubles[question] = str(error)
    return HandIn(claim, answers, document, troubles)


def write(found: HandIn, folder: Path, when: datetime) -> Path:
    """Write the file to hand in into ``folder``, with a new name; return its path.

    It has the cells' text and code, the claim, and the time ``when``, but no outputs or other data of this computer.
    """
    stem = f"{found.claim.assignment}-{found.claim.student}"
    number, path = 1, folder / f"{stem}.ipynb"
    while path.exists():
        number += 1
        path = folder / f"{stem}-{number}.ipynb"
    cells = []
    for at, cell in enumerate(found.document.cells):
        metadata = {"labkit": cell.labkit} if cell.labkit else {}
        cells.append(cell_as_json(cell.id or f"c{at}", cell.code, cell.source, metadata))
    asked = {"questions": questions} if (questions := found.document.labkit.get("questions")) else {}
    told = asked | asdict(found.claim) | {"submitted": when.astimezone().isoformat(timespec="seconds")}
    write_whole(path, to_json(cells, {"labkit": told}))
    return path


def _claim(claims: list[Claim], assignment: str, student: str | None) -> Claim:
    if student is not None and not _ID.fullmatch(student):
        raise Problem(
            en=f"--id must be your student id: letters, digits, . _ - and @, got {student!r}",
            zh=f"--id 应是你的学号，只能有字母、数字和 . _ - @，现在是 {student!r}",
        )
    mine = [claim for claim in claims if claim.assignment == assignment]
    if len({claim.student for claim in mine}) > 1:
        listed = series(claim.student for claim in mine)
        raise Problem(
            en=f"cells of several editions are in it ({listed}): hand in your own notebook",
            zh=f"里面混有几个人的版本（{listed}）：请提交你自己的笔记本",
        )
    if mine and student not in (None, mine[0].student):
        raise Problem(
            en=f"this is the edition of {mine[0].student}, not of {student}: each student has their own",
            zh=f"这是 {mine[0].student} 的版本，不是 {student} 的：每个人的版本不同",
        )
    if not mine and student is None:
        raise Problem(
            en="the notebook does not say whose it is: add --id and your student id",
            zh="笔记本里没有写明是谁的：请加上 --id 和你的学号",
        )
    return Claim(assignment, student or mine[0].student, mine[0].edition if mine else "")


def _questions(document: Document) -> list[QuestionFacts]:
    """Read the questions from the edition's metadata, and skip invalid entries."""
    found = []
    told = document.labkit.get("questions")
    for id, question in told.items() if isinstance(told, dict) else ():
        stub, defines = map(question.get, ("stub", "defines")) if isinstance(question, dict) else (None, None)
        if isinstance(stub, str) and parse_source(stub) and isinstance(defines, list):
            found.append(QuestionFacts(id, tuple(name for name in defines if isinstance(name, str)), stub))
    return found
