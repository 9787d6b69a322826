"""Marks, as they are kept: a line of JSON for each grading of a student, the last of which counts."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from .submission import Note


@dataclass(frozen=True)
class PartMark:
    """``score``: the share of the part's points, 0 to 1; unless it is all, a hint and its words."""

    id: str
    score: float
    points: float
    hint: str | None = None
    en: str = ""
    zh: str = ""


@dataclass(frozen=True)
class QuestionMark:
    """``points`` of ``of``; ``state``: judged, unanswered, or failed (which is no fault of the student)."""

    points: float
    of: float
    parts: list[PartMark] = field(default_factory=list)
    state: str = "judged"


@dataclass(frozen=True)
class Mark:
    student: str
    digest: str
    when: str
    questions: dict[str, QuestionMark]
    notes: list[Note] = field(default_factory=list)


def read(path: Path) -> dict[str, Mark]:
    """The marks by student; {} if nothing is graded yet."""
    found = {}
    for line in path.read_text("utf-8").splitlines() if path.exists() else ():
        told = json.loads(line)
        questions = {
            id: QuestionMark(**{**mark, "parts": [PartMark(**part) for part in mark["parts"]]})
            for id, mark in told["questions"].items()
        }
        found[told["student"]] = Mark(
            **{**told, "questions": questions, "notes": [Note(*n) for n in told["notes"]]}
        )
    return found
