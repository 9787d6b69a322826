"""Marks are kept as lines of JSON, one for each grading of a student; the last one counts.

What a teacher sets by hand is a line of its own: it counts instead of the question's automatic mark, which stays beside
it, and goes on counting when the student is graded again.

A line is on the disk, whole, before the next submission's is begun; nothing that is there is ever changed. So a
grading that is killed loses what it was working on and no mark, and one that is run again goes on where it was.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
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
class ByHand:
    """Points that a teacher gives for a question, and why; ``points`` None takes back those given before.

    digest  of the answers that the teacher saw, "" if nothing was graded.
    """

    student: str
    question: str
    points: float | None
    why: str
    when: str
    digest: str = ""


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
    by_hand: dict[str, ByHand] = field(default_factory=dict)

    @property
    def counted(self) -> dict[str, float]:
        """The points of each question: those given by hand, else those of the grading."""
        given = {id: hand.points for id, hand in self.by_hand.items() if hand.points is not None}
        return {id: question.points for id, question in self.questions.items()} | given

    @property
    def points(self) -> float:
        return round(sum(self.counted.values()), 2)

    @property
    def of(self) -> float:
        return sum(question.of for question in self.questions.values())

    @property
    def failed(self) -> bool:
        """A question could not be judged, through no fault of the student's."""
        return any(mark.state == "failed" and id not in self.by_hand for id, mark in self.questions.items())

    def given(self, hand: ByHand) -> Mark:
        """This mark with what was set by hand, or without it if that was taken back."""
        others = {id: other for id, other in self.by_hand.items() if id != hand.question}
        return replace(self, by_hand=others | ({hand.question: hand} if hand.points is not None else {}))


def now() -> str:
    """The time of a mark."""
    return datetime.now().astimezone().isoformat(timespec="seconds")


def read(path: Path) -> dict[str, Mark]:
    """The marks by student, {} if nothing is graded yet; :class:`Problem` if a line is no mark."""
    return {student: marks[-1] for student, marks in history(path).items()}


def history(path: Path) -> dict[str, list[Mark]]:
    """All marks that each student has had, the last of which counts; :class:`Problem` if a line is no mark.

    A change by hand makes another one, too.

    A last line without its end is of a grading that was killed while it wrote: no mark yet.
    """
    if not path.exists():
        return {}
    found: dict[str, list[Mark]] = {}
    *lines, _ = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, 1):
        try:
            told = json.loads(line.decode("utf-8"))
            if "question" in told:
                hand = ByHand(**told)
                mark = found.get(hand.student, [Mark(hand.student, "", hand.when, {})])[-1].given(hand)
            else:
                questions = {id: QuestionMark.read(mark) for id, mark in told["questions"].items()}
                notes = {name: [Note(**note) for note in told[name]] for name in ("notes", "troubles")}
                before = found[told["student"]][-1].by_hand if told["student"] in found else {}
                mark = Mark(**told | notes | {"questions": questions, "by_hand": before})
        except (ValueError, TypeError, KeyError, AttributeError):
            raise Problem(
                en=f"{path}, line {number} is no mark: the file has been changed. Take it from your backup, or "
                f"delete this line and grade again",
                zh=f"{path} 第 {number} 行不是成绩：文件被改动过。请从备份中恢复，或删除这一行后重新批改",
            ) from None
        found.setdefault(mark.student, []).append(mark)
    return found


@contextmanager
def writing(path: Path) -> Iterator[Callable[[Mark | ByHand], None]]:
    """Gives what appends a mark, or a change by hand, and returns when it is on the disk.

    Problem if another grading holds the file.
    """
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

            def add(mark: Mark | ByHand) -> None:
                told = asdict(mark)
                told.pop("by_hand", None)  # it has lines of its own
                line = json.dumps(told, ensure_ascii=False, allow_nan=False).encode("utf-8") + b"\n"
                while line:
                    line = line[stream.write(line) :]
                os.fsync(stream.fileno())

            yield add
    finally:
        lock.release()
