"""One file graded, as a check in continuous integration does: with a class's folder, or without any."""

from __future__ import annotations

import ast
from datetime import datetime
from pathlib import Path

from ...base.language import say
from ..assignment import Assignment, load
from ..draw import Numbers
from ..folders import names
from ..handout.folder import ClassFolder, open_class
from ..handout.release import assignment_of, numbers_of
from ..intake.answers import Answers, assignments_of, claims_of, read_answers
from ..intake.collecting import Collection, Received, Submission, read_submission
from ..intake.document import MOST_BYTES, Document, read_document
from ..wall.workers import template
from .marks import Mark
from .process import draws
from .submission import fingerprint, grade


def grade_file(path: Path, way: str, class_folder: Path | None, secret: bytes) -> Mark:
    """The marks of a notebook; ValueError if it is none of an assignment, with what to do.

    class_folder  with it, numbers and cases are those of the student whose edition it is; without it, numbers are
                  those that the file says, and cases are drawn from ``secret``.
    """
    with open(path, "rb") as stream:
        document = read_document(stream.read(MOST_BYTES + 1), path.name)
    if class_folder is not None:
        student, assignment, numbers, answers, secret = _of_class(open_class(class_folder), document, path)
        hidden = [class_folder]
    else:
        held = assignments_of(document)
        if not held or held[0] not in names():
            raise ValueError(
                say(
                    en=f"{path} holds none of the assignments that are known here ({', '.join(names())})",
                    zh=f"{path} 不含这里认识的任何作业（{', '.join(names())}）",
                )
            )
        assignment = load(held[0])
        numbers = assignment.numbers(None)
        numbers = {**numbers, **_told_numbers(document, numbers)}
        answers = read_answers(
            document, assignment.name, assignment.questions, numbers, assignment.prologue(numbers)
        )
        claims = claims_of(document)
        student, hidden = claims[0].student if claims else "-", []
    with template(way, assignment.preload, hidden) as workers:
        graded = grade(assignment, answers.answers, numbers, draws(secret, student, assignment.name), workers)
    when = datetime.now().astimezone().isoformat(timespec="seconds")
    return Mark(
        student,
        answers.digest,
        when,
        graded.questions,
        answers.notes,
        graded.troubles,
        fingerprint(assignment),
    )


def _of_class(
    folder: ClassFolder, document: Document, path: Path
) -> tuple[str, Assignment, Numbers, Answers, bytes]:
    claims = [claim.student for claim in claims_of(document) if claim.student in folder.students]
    if len(set(claims)) != 1:
        raise ValueError(
            say(
                en=f"{path} does not say which student of the class it is of",
                zh=f"{path} 没有说明是班里哪个学生的",
            )
        )
    assignment = assignment_of(folder)
    received = Received(path.name, b"", document, datetime.now().astimezone())
    came = Collection({claims[0]: Submission(claims[0], received)}, [], [])
    numbers = numbers_of(folder, assignment, claims[0])
    return claims[0], assignment, numbers, read_submission(folder, assignment, came, claims[0]), folder.secret


def _told_numbers(document: Document, usual: Numbers) -> dict[str, int | str]:
    """The numbers that the file's own ``begin(...)`` names, where they are of the usual kind."""
    found: dict[str, int | str] = {}
    for cell in document.cells:
        if not cell.code or "begin(" not in cell.source or len(cell.source) > 100_000:
            continue
        try:
            calls = [node for node in ast.walk(ast.parse(cell.source)) if isinstance(node, ast.Call)]
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        for call in calls:
            if isinstance(call.func, ast.Name) and call.func.id == "begin":
                for word in call.keywords:
                    value = word.value.value if isinstance(word.value, ast.Constant) else None
                    name = word.arg or ""
                    if isinstance(value, (int, str)) and type(value) is type(usual.get(name)):
                        found[name] = value
    return found
