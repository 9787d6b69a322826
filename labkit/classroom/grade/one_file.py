"""Grades one file without its class, as a check in continuous integration does, or a student who hands in."""

from __future__ import annotations

import ast
from contextlib import closing
from pathlib import Path

from ..assignment import Assignment, load
from ..draw import Numbers
from ..folders import names
from ..intake.answers import assignments_of, claims_of
from ..intake.collecting import answers_of
from ..intake.document import MOST_BYTES, Document, read_document
from ..source import parsed
from ..wall.templates import template
from ..words import Problem
from .marks import Mark, now
from .submission import draws, fingerprint, grade

OPEN = b"open examples"  # in the place of a secret


def grade_file(path: Path, way: str, secret: bytes) -> tuple[Assignment, Mark]:
    """A notebook's assignment and marks, with cases drawn from ``secret``; ValueError if it is of no assignment."""
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


def grade_alone(document: Document, assignment: Assignment, way: str, secret: bytes, student: str) -> Mark:
    """The marks of a notebook without its class, with the numbers that it says itself."""
    usual = assignment.numbers(None)
    numbers: Numbers = {**usual, **_told_numbers(document, usual)}
    answers = answers_of(assignment, numbers, document)
    draw = draws(secret, student, assignment.name, answers.answers)
    with closing(template(way, assignment.preload)) as workers:
        graded = grade(assignment, answers.answers, numbers, draw, workers)
    judged_by = fingerprint(assignment)
    return Mark(student, answers.digest, now(), graded.questions, answers.notes, graded.troubles, judged_by)


def _told_numbers(document: Document, usual: Numbers) -> dict[str, int | str]:
    """Reads the numbers from the file's own ``begin(...)``; those of another type than usual are left out."""
    found: dict[str, int | str] = {}
    for cell in document.cells:
        tree = parsed(cell.source) if cell.code and "begin(" in cell.source else None
        for call in ast.walk(tree) if tree else ():
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "begin":
                for word in call.keywords:
                    value = word.value.value if isinstance(word.value, ast.Constant) else None
                    name = word.arg or ""
                    if isinstance(value, (int, str)) and type(value) is type(usual.get(name)):
                        found[name] = value
    return found
