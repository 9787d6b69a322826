"""Marks are kept as lines of JSON, one for each grading of a student; the last one counts.

A line is on the disk, whole, before the next submission's is begun; nothing that is there is ever changed. So a
grading that is killed loses what it was working on and no mark, and one that is run again goes on where it was.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from ..words import Note, Problem


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

    @classmethod
    def read(cls, told: dict[str, Any]) -> QuestionMark:
        """The mark that ``asdict`` made into plain data."""
        return cls(**told | {"parts": [PartMark(**part) for part in told["parts"]]})


@dataclass(frozen=True)
class Mark:
    """The marks of one student.

    digest    of the answers, and ``graded_with`` of what they were judged by: if
              both are the same, there is nothing to grade again.
    when      ISO 8601, with the time zone.
    notes     what was odd about the file: for the student and the teacher.
    troubles  what the code tried or ran into while it was graded: for the teacher alone.
    """

    student: str
    digest: str
    when: str
    questions: dict[str, QuestionMark]
    notes: list[Note] = field(default_factory=list)
    troubles: list[Note] = field(default_factory=list)
    graded_with: str = ""

    @property
    def points(self) -> float:
        return round(sum(question.points for question in self.questions.values()), 2)

    @property
    def of(self) -> float:
        return sum(question.of for question in self.questions.values())

    @property
    def failed(self) -> bool:
        """A question could not be judged, through no fault of the student's."""
        return any(question.state == "failed" for question in self.questions.values())


def now() -> str:
    """The time of a mark."""
    return datetime.now().astimezone().isoformat(timespec="seconds")


def read(path: Path) -> dict[str, Mark]:
    """The marks by student, {} if nothing is graded yet; :class:`Problem` if a line is no mark."""
    return {student: marks[-1] for student, marks in history(path).items()}


def history(path: Path) -> dict[str, list[Mark]]:
    """All marks that each student has had, the last of which counts; :class:`Problem` if a line is no mark.

    A last line without its end is of a grading that was killed while it wrote: no mark yet.
    """
    if not path.exists():
        return {}
    found: dict[str, list[Mark]] = {}
    *lines, _ = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, 1):
        try:
            mark = _mark(json.loads(line.decode("utf-8")))
        except (ValueError, TypeError, KeyError, AttributeError):
            raise Problem(
                en=f"{path}, line {number} is no mark: the file has been changed. Take it from your backup, or "
                f"delete this line and grade again",
                zh=f"{path} 第 {number} 行不是成绩：文件被改动过。请从备份中恢复，或删除这一行后重新批改",
            ) from None
        found.setdefault(mark.student, []).append(mark)
    return found


@contextmanager
def writing(path: Path) -> Iterator[Callable[[Mark], None]]:
    """Gives what appends a mark and returns when it is on the disk. Problem if another grading holds the file."""
    from filelock import FileLock, Timeout

    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path.with_name(f".{path.name}.lock"))
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise Problem(
            en=f"another labkit grade is writing {path}: wait until it has ended",
            zh=f"另一个 labkit grade 正在写 {path}：请等它结束",
        ) from None
    try:
        read(path)  # nothing is added to a file that cannot be understood
        with open(path, "ab", buffering=0) as stream:
            stream.truncate(path.read_bytes().rfind(b"\n") + 1)  # a torn line is no mark
            if os.name == "posix":
                os.chmod(path, 0o600)

            def add(mark: Mark) -> None:
                line = json.dumps(asdict(mark), ensure_ascii=False, allow_nan=False).encode("utf-8") + b"\n"
                while line:
                    line = line[stream.write(line) :]
                os.fsync(stream.fileno())

            yield add
    finally:
        lock.release()


def _mark(told: dict[str, Any]) -> Mark:
    questions = {id: QuestionMark.read(mark) for id, mark in told["questions"].items()}
    notes = {name: [Note(**note) for note in told[name]] for name in ("notes", "troubles")}
    return Mark(**told | notes | {"questions": questions})
