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
from difflib import get_close_matches
from pathlib import Path

from labkit.base.texts import InBoth

from ..assignment import Question
from ..handout.folder import ClassFolder, assignment_of
from ..words import Problem, Remark

# In the place of points: what was given by hand is taken back, and the grading's points count again.
TAKE_BACK = "auto"


@dataclass(frozen=True)
class PartMark(InBoth):
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
class StudentMark:
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
    notes: list[Remark] = field(default_factory=list)
    troubles: list[Remark] = field(default_factory=list)
    graded_with: str = ""
    by_hand: dict[str, ByHand] = field(default_factory=dict)

    @property
    def counted_points(self) -> dict[str, float]:
        """Points by question: those given by hand, else those of the grading."""
        given = {id: hand.points for id, hand in self.by_hand.items() if hand.points is not None}
        return {id: question.points for id, question in self.questions.items()} | given

    @property
    def points(self) -> float:
        return round(sum(self.counted_points.values()), 2)

    @property
    def most_points(self) -> float:
        return sum(question.of for question in self.questions.values())

    @property
    def has_failed(self) -> bool:
        """Whether a judge failed on a question, through no fault of the student's."""
        return any(mark.state == "failed" and id not in self.by_hand for id, mark in self.questions.items())

    def with_hand(self, hand: ByHand) -> StudentMark:
        """Return this mark with the points set by hand, or without them if they were taken back."""
        others = {id: other for id, other in self.by_hand.items() if id != hand.question}
        return replace(self, by_hand=others | ({hand.question: hand} if hand.points is not None else {}))


def current_time() -> str:
    """Return the time now, as marks have it."""
    return datetime.now().astimezone().isoformat(timespec="seconds")


def read(path: Path) -> dict[str, StudentMark]:
    """Return marks by student, {} if nothing is graded yet. Raise :class:`Problem` if a line is no mark."""
    return {student: marks[-1] for student, marks in history(path).items()}


def history(path: Path) -> dict[str, list[StudentMark]]:
    """Return all marks of each student, the last of which counts. Raise :class:`Problem` if a line is no mark.

    A change by hand makes another one, too.

    A last line without its end is of a grading that was killed while it wrote: no mark yet.
    """
    if not path.exists():
        return {}
    found: dict[str, list[StudentMark]] = {}
    *lines, _ = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, 1):
        try:
            told = json.loads(line.decode("utf-8"))
            if "question" in told:
                hand = ByHand(**told)
                mark = found.get(hand.student, [StudentMark(hand.student, "", hand.when, {})])[-1].with_hand(
                    hand
                )
            else:
                parts = {
                    id: [PartMark(**one) for one in mark["parts"]] for id, mark in told["questions"].items()
                }
                questions = {id: QuestionMark(**told["questions"][id] | {"parts": parts[id]}) for id in parts}
                notes = {name: [Remark(**note) for note in told[name]] for name in ("notes", "troubles")}
                before = found[told["student"]][-1].by_hand if told["student"] in found else {}
                mark = StudentMark(**told | notes | {"questions": questions, "by_hand": before})
        except (ValueError, TypeError, KeyError, AttributeError):
            raise Problem(
                en=f"{path}, line {number} is no mark: the file has been changed. Take it from your backup, or "
                f"delete this line and grade again",
                zh=f"{path} 第 {number} 行不是成绩：文件被改动过。请从备份中恢复，或删除这一行后重新批改",
            ) from None
        found.setdefault(mark.student, []).append(mark)
    return found


@contextmanager
def writing(path: Path) -> Iterator[Callable[[StudentMark | ByHand], None]]:
    """Return what appends a mark, or a change by hand, and returns when it is on the disk.

    Problem if another grading holds the file.
    """
    from filelock import FileLock, Timeout

    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        lock = FileLock(path.with_name(f".{path.name}.lock")).acquire(timeout=0)
    except Timeout:
        raise Problem(
            en=f"another labkit grade is writing {path}: wait until it has ended",
            zh=f"另一个 labkit grade 正在写 {path}：请等它结束",
        ) from None
    with lock:
        read(path)  # nothing is added to a file that cannot be understood
        with open(path, "ab", buffering=0) as stream:
            stream.truncate(path.read_bytes().rfind(b"\n") + 1)  # a torn line is no mark
            if os.name == "posix":
                os.chmod(path, 0o600)

            def add(mark: StudentMark | ByHand) -> None:
                told = asdict(mark)
                told.pop("by_hand", None)  # its text already has line breaks
                line = json.dumps(told, ensure_ascii=False, allow_nan=False).encode("utf-8") + b"\n"
                while line:
                    line = line[stream.write(line) :]
                os.fsync(stream.fileno())

            yield add


def mark_by_hand(folder: ClassFolder, student: str, question: str, points: str, why: str) -> StudentMark:
    """Give ``student`` these points for ``question`` and keep ``why``; returns the mark as it counts now.

    student   an id of the roster.
    question  a question's name, ``primitives.split`` or ``split``.
    points    a number from 0 to those of the question; :data:`TAKE_BACK` takes back what was given.

    Problem if there is no such student or question, the points are none, or there is no reason.
    """
    assignment = assignment_of(folder)
    if student not in folder.students:
        raise _unknown("student", "学生", student, list(folder.students))
    asked = {one.id: one for one in assignment.questions}
    found = asked.get(question.removeprefix(f"{assignment.name}."))
    if found is None:
        raise _unknown("question", "题目", question, list(asked))
    if not why.strip():
        raise Problem(
            en="say why: --why “…” stands beside the mark", zh="请写明理由：--why “……” 会显示在成绩旁边"
        )
    given = None if points == TAKE_BACK else _points(points, found)
    with writing(folder.marks) as add:
        before = read(folder.marks).get(student)
        add(ByHand(student, found.id, given, why.strip(), current_time(), before.digest if before else ""))
        return read(folder.marks)[student]


def _points(text: str, question: Question) -> float:
    try:
        points = float(text)
    except ValueError:
        points = -1
    if not 0 <= points <= question.points:
        raise Problem(
            en=f"the points for {question.id} must be a number from 0 to {question.points:g}, or {TAKE_BACK}, "
            f"got {text!r}",
            zh=f"{question.id} 的分数必须是 0 到 {question.points:g} 之间的数，或者 {TAKE_BACK}，现在是 {text!r}",
        )
    return points


def _unknown(kind: str, zh: str, name: str, known: list[str]) -> Problem:
    near = get_close_matches(name, known, 3, 0.5) or known[:8]
    return Problem(
        en=f"there is no {kind} {name!r}; there are {', '.join(near)}{' …' * (len(near) < len(known))}",
        zh=f"没有{zh} {name!r}；有的是 {'、'.join(near)}{' ……' * (len(near) < len(known))}",
    )
