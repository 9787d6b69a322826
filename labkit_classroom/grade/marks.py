"""Store marks as lines of JSON, one line for each grading of a student. The last line counts.

Points set by hand count instead of the question's automatic points, also after another grading, until the teacher takes
them back.

Each line is on the disk before the next one is written, and no line is ever changed: a killed grading loses no mark,
and the next one continues where it stopped.
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
from ..messages import Problem, Remark

# Instead of points: take back the points set by hand.
TAKE_BACK = "auto"


@dataclass(frozen=True)
class PartMark(InBoth):
    """The mark of a part. ``score``: the share of its points, 0 to 1; below 1 with a hint's id and texts."""

    id: str
    score: float
    points: float
    hint: str | None = None
    en: str = ""
    zh: str = ""


@dataclass(frozen=True)
class QuestionMark:
    """The mark of a question: ``points`` of ``of``; ``state``: judged, unanswered, or failed (the judge's fault)."""

    points: float
    of: float
    parts: list[PartMark] = field(default_factory=list)
    state: str = "judged"


@dataclass(frozen=True)
class ByHand:
    """Points that a teacher sets for a question. ``digest``: of the answers graded before, "" without any."""

    points: float
    why: str
    when: str
    digest: str


@dataclass(frozen=True)
class StudentMark:
    """The marks of one student.

    digest    of the answers, and ``graded_with`` of the assignment: unless one changes, grading again is needless.
    when      ISO 8601, with the time zone.
    notes     remarks on the file, for the student and the teacher.
    troubles  remarks on the behaviour of the code, for the teacher alone.
    share     the share of the points that counts, below 1 for late work.
    """

    student: str
    digest: str
    when: str
    questions: dict[str, QuestionMark]
    notes: list[Remark] = field(default_factory=list)
    troubles: list[Remark] = field(default_factory=list)
    graded_with: str = ""
    by_hand: dict[str, ByHand] = field(default_factory=dict)
    share: float = 1.0

    @property
    def counted_points(self) -> dict[str, float]:
        """Return the points by question: set by hand, or from the grading."""
        automatic = {id: question.points for id, question in self.questions.items()}
        return automatic | {id: hand.points for id, hand in self.by_hand.items()}

    @property
    def points(self) -> float:
        return round(sum(self.counted_points.values()) * self.share, 2)

    @property
    def max_points(self) -> float:
        return sum(question.of for question in self.questions.values())

    @property
    def has_failed(self) -> bool:
        """Return whether a judge failed on a question that has no points by hand."""
        return any(mark.state == "failed" and id not in self.by_hand for id, mark in self.questions.items())


def current_time() -> str:
    """Return the time now in the format of marks."""
    return datetime.now().astimezone().isoformat(timespec="seconds")


def read(path: Path) -> dict[str, StudentMark]:
    """Return the current mark of each graded student. Raise :class:`Problem` if a line is no mark."""
    return {student: marks[-1] for student, marks in history(path).items()}


def history(path: Path) -> dict[str, list[StudentMark]]:
    """Return each student's marks in order, one more after each grading and each change by hand.

    Ignore an incomplete last line, which a killed grading leaves. Raise :class:`Problem` if another line is no mark.
    """
    if not path.exists():
        return {}
    found: dict[str, list[StudentMark]] = {}
    *lines, _ = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, 1):
        try:
            told = json.loads(line.decode("utf-8"))
            for question in told["questions"].values():
                question["parts"] = [PartMark(**one) for one in question["parts"]]
            told["questions"] = {id: QuestionMark(**one) for id, one in told["questions"].items()}
            told |= {name: [Remark(**one) for one in told[name]] for name in ("notes", "troubles")}
            told["by_hand"] = {id: ByHand(**one) for id, one in told["by_hand"].items()}
            mark = StudentMark(**told)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            why = f"{type(error).__name__}: {error}"
            raise Problem(
                en=f"{path}, line {number} is no mark of this labkit ({why}): it has been changed, or is from another "
                "version. Take the file from your backup; or delete this line, and if it has points set by hand, set "
                "them again with labkit grade --mark; then grade again",
                zh=f"{path} 第 {number} 行不是这个版本的 labkit 写的成绩（{why}）：这一行被改动过，或来自别的版本。"
                "请从备份中恢复文件；或删除这一行（其中如有手动给的分数，请用 labkit grade --mark 重新给），再重新批改",
            ) from None
        found.setdefault(mark.student, []).append(mark)
    return found


@contextmanager
def writing(path: Path) -> Iterator[Callable[[StudentMark], None]]:
    """Lock the file, and return a function that writes a mark to the disk.

    Raise Problem if another grading holds the lock.
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
        read(path)  # raise before appending to an invalid file
        with open(path, "ab", buffering=0) as stream:
            stream.truncate(path.read_bytes().rfind(b"\n") + 1)  # drop an incomplete line
            if os.name == "posix":
                os.chmod(path, 0o600)

            def add(mark: StudentMark) -> None:
                line = json.dumps(asdict(mark), ensure_ascii=False, allow_nan=False).encode("utf-8") + b"\n"
                while line:
                    line = line[stream.write(line) :]
                os.fsync(stream.fileno())

            yield add


def mark_by_hand(folder: ClassFolder, student: str, question: str, points: str, why: str) -> StudentMark:
    """Set a student's points for a question, with the reason ``why``; return the new mark.

    student   an id of the roster.
    question  a question's name, ``primitives.split`` or ``split``.
    points    a number from 0 to those of the question; :data:`TAKE_BACK` takes back the points set before.

    Raise Problem for an unknown student or question, invalid points, or an empty reason.
    """
    assignment = assignment_of(folder)
    check_student(folder, student)
    asked = {one.id: one for one in assignment.questions}
    found = asked.get(question.removeprefix(f"{assignment.name}."))
    if found is None:
        raise _unknown("question", "题目", question, list(asked))
    if not why.strip():
        raise Problem(
            en="say why: --why “…” stands beside the mark", zh="请写明理由：--why “……” 会显示在成绩旁边"
        )
    hand = {} if points == TAKE_BACK else {found.id: _points(points, found)}
    with writing(folder.marks) as add:
        mark = read(folder.marks).get(student) or StudentMark(student, "", current_time(), {})
        others = {id: one for id, one in mark.by_hand.items() if id != found.id}
        new = {id: ByHand(given, why.strip(), current_time(), mark.digest) for id, given in hand.items()}
        mark = replace(mark, by_hand=others | new)
        add(mark)
    return mark


def check_student(folder: ClassFolder, student: str) -> None:
    """Raise Problem if the roster has no such id."""
    if student not in folder.students:
        raise _unknown("student", "学生", student, list(folder.students))


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
