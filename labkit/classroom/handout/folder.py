"""The folder of one assignment and one class, which the teacher keeps::

    FOLDER/handout/<id>/NAME.ipynb   to be given out: an edition for each student
    FOLDER/submitted/                whatever comes back is put here, in any folders, under any names
    FOLDER/feedback/<id>.html        to be given back
    FOLDER/teacher/                  stays with the teacher: class.json (with the secret), marks, overview, exports

All that differs from student to student is drawn from the secret in ``teacher/class.json``, which no student's
file holds: the numbers of an edition, the cases it is graded on, and the tag by which an edition is known again.
"""

from __future__ import annotations

import hmac
import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from pathlib import Path

from ...base.files import reason, write_whole
from ...base.language import LANGUAGES
from ..words import Problem
from .roster import Student

_VERSION = 1
CLASS_FILE = Path("teacher", "class.json")


@dataclass(frozen=True)
class ClassFolder:
    """A class, as ``teacher/class.json`` describes it, and where its files are.

    secret    32 bytes that only the teacher has.
    language  of the students for whom the roster names none.
    deadline  None, or a moment with its time zone.
    """

    path: Path
    assignment: str
    secret: bytes = field(repr=False)
    students: dict[str, Student] = field(repr=False)
    language: str = "en"
    deadline: datetime | None = None

    @property
    def handout(self) -> Path:
        return self.path / "handout"

    @property
    def submitted(self) -> Path:
        return self.path / "submitted"

    @property
    def feedback(self) -> Path:
        return self.path / "feedback"

    @property
    def teacher(self) -> Path:
        return self.path / "teacher"

    @property
    def marks(self) -> Path:
        return self.teacher / "marks.jsonl"

    def language_of(self, student: str) -> str:
        """The language in which this student reads."""
        found = self.students.get(student)
        return (found.language if found else None) or self.language

    @property
    def own_assignment(self) -> Path:
        """The folder with a copy of the assignment as it was released, if it does not come with labkit."""
        return self.teacher / "assignment" / self.assignment

    def tag(self, student: str) -> str:
        """The tag in this student's edition, which nobody can make without the secret."""
        words = "\0".join(("edition", self.assignment, student))
        return hmac.digest(self.secret, words.encode(), "sha256").hex()[:16]

    def save(self) -> None:
        """Write ``teacher/class.json``, which nobody else on this computer may read. OSError if it cannot be."""
        self.teacher.mkdir(parents=True, exist_ok=True)
        if os.name == "posix":
            self.teacher.chmod(0o700)
        told = {
            "labkit class": _VERSION,
            "assignment": self.assignment,
            "secret": self.secret.hex(),
            "language": self.language,
            "deadline": self.deadline.isoformat() if self.deadline else None,
            "students": [asdict(student) for student in self.students.values()],
        }
        write_whole(self.path / CLASS_FILE, json.dumps(told, indent=1, ensure_ascii=False) + "\n")

    def with_students(self, students: Iterable[Student]) -> ClassFolder:
        """Adds students, and replaces those that it has."""
        return replace(self, students=self.students | {student.id: student for student in students})


def open_class(path: Path) -> ClassFolder:
    """Reads the class folder ``path``; Problem if it is none, or cannot be read."""
    file = path / CLASS_FILE
    try:
        told = json.loads(file.read_text("utf-8"))
        if told["labkit class"] != _VERSION:
            raise Problem(
                en=f"{file} is of a newer labkit: update this one", zh=f"{file} 来自更新版本的 labkit：请升级"
            )
        students = [Student(**student) for student in told["students"]]
        deadline = datetime.fromisoformat(told["deadline"]) if told["deadline"] else None
        if told["language"] not in LANGUAGES:
            raise ValueError(told["language"])
        return ClassFolder(
            path,
            str(told["assignment"]),
            bytes.fromhex(told["secret"]),
            {student.id: student for student in students},
            told["language"],
            deadline,
        )
    except FileNotFoundError:
        raise Problem(
            en=f"{path} is no folder that `labkit assignment release` made: it has no {CLASS_FILE.as_posix()}",
            zh=f"{path} 不是 `labkit assignment release` 建立的文件夹：里面没有 {CLASS_FILE.as_posix()}",
        ) from None
    except OSError as error:
        raise Problem(
            en=f"{file} cannot be read: {reason(error)}", zh=f"无法读取 {file}：{reason(error)}"
        ) from error
    except Problem:
        raise
    except (ValueError, KeyError, TypeError) as error:
        raise Problem(
            en=f"{file} has been changed and cannot be understood. Take it from your backup: "
            "without its secret this class cannot be graded as it was released",
            zh=f"{file} 被改动过，无法识别。请从备份中恢复：没有其中的密钥，就无法按发放时的版本批改",
        ) from error


def moment(text: str) -> datetime:
    """Reads a deadline that somebody typed: ``2026-12-01``, ``2026-12-01 18:00``, with or without a time zone.

    A date alone is its last minute; without a zone it is this computer's. ValueError if it is none.
    """
    try:
        found = datetime.fromisoformat(text.strip().replace("/", "-"))
    except ValueError:
        raise Problem(
            en=f"the deadline must be like 2026-12-01 or “2026-12-01 18:00”, got {text!r}",
            zh=f"截止时间要写成 2026-12-01 或 “2026-12-01 18:00” 的样子，现在是 {text!r}",
        ) from None
    if len(text.strip()) <= 10:
        found = found.replace(hour=23, minute=59)
    return found.astimezone() if found.tzinfo is None else found
