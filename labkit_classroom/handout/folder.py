"""Create and open the folder of one assignment and one class::

    FOLDER/handout/<id>/NAME.ipynb   give out: an edition for each student
    FOLDER/submitted/                put all submissions here, in any folders, with any names
    FOLDER/feedback/<id>.html        give back: a page for each student
    FOLDER/teacher/                  private: class.json (with the secret), marks, overview, exports

The numbers of an edition, the cases of its grading and the tag that identifies it are drawn from the secret in
``teacher/class.json``, which is in no student's file.
"""

from __future__ import annotations

import hmac
import json
import os
import re
import secrets
import shutil
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path

from labkit.base.files import reason, write_whole
from labkit.base.language import LANGUAGES, get_language, using
from labkit.base.texts import texts_beside

from ..assignment import Assignment, load, notebook
from ..draw import Draw
from ..messages import Problem
from .roster import Student

_VERSION = 1
_TEXTS = texts_beside(__file__)
CLASS_FILE = Path("teacher", "class.json")


@dataclass
class ClassFolder:
    """The contents of ``teacher/class.json``, and the paths of the class's files.

    secret    32 random bytes.
    language  the language of students without one in the roster.
    deadline  with its time zone, or None.
    late_rate the share of the points that late work loses for each day begun, 0 to 1.
    """

    path: Path
    assignment: str
    secret: bytes = field(repr=False)
    students: dict[str, Student] = field(repr=False)
    language: str = "en"
    deadline: datetime | None = None
    late_rate: float = 0.0

    def __post_init__(self) -> None:
        names = "handout", "submitted", "feedback", "teacher"
        self.handout, self.submitted, self.feedback, self.teacher = (self.path / name for name in names)
        self.marks = self.teacher / "marks.jsonl"
        # The copy of a teacher's own assignment, made at the release.
        self.own_assignment = self.teacher / "assignment" / self.assignment

    def language_of(self, student: str) -> str:
        """Return the language of this student's files."""
        found = self.students.get(student)
        return (found.language if found else None) or self.language

    def days_late(self, when: datetime) -> int:
        """Return the days begun between the deadline and ``when``."""
        return max(0, -((self.deadline - when) // timedelta(days=1))) if self.deadline else 0

    def late_rule(self) -> str:
        """Return a sentence about the deadline and late work in the current language, "" without a deadline."""
        if self.deadline is None:
            return ""
        when = f"{self.deadline:%Y-%m-%d %H:%M} (UTC{self.deadline:%z})"
        rule = {0.0: "none", 1.0: "zero"}.get(self.late_rate, "share")
        return str(_TEXTS["deadline", rule].fill({"when": when, "rate": f"{100 * self.late_rate:.3g} %"}))

    def tag(self, student: str) -> str:
        """Return the tag of this student's edition, which cannot be computed without the secret."""
        words = "\0".join(("edition", self.assignment, student))
        return hmac.digest(self.secret, words.encode(), "sha256").hex()[:16]

    def save(self) -> None:
        """Write ``teacher/class.json``, readable by this user only. Raise OSError if it cannot be written."""
        self.teacher.mkdir(parents=True, exist_ok=True)
        if os.name == "posix":
            self.teacher.chmod(0o700)
        told = {
            "labkit class": _VERSION,
            "assignment": self.assignment,
            "secret": self.secret.hex(),
            "language": self.language,
            "deadline": self.deadline.isoformat() if self.deadline else None,
            "late": self.late_rate,
            "students": [asdict(student) for student in self.students.values()],
        }
        write_whole(self.path / CLASS_FILE, json.dumps(told, indent=1, ensure_ascii=False) + "\n")


def open_class(path: Path) -> ClassFolder:
    """Read the class folder ``path``. Raise Problem if it is none, or cannot be read."""
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
            float(told.get("late", 0)),
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


def parse_deadline(text: str) -> datetime:
    """Parse a deadline such as ``2026-12-01`` or ``2026-12-01 18:00``, with or without a time zone.

    The default time is the day's last minute, the default zone this computer's. Raise ValueError if it is invalid.
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


def parse_late_rule(text: str) -> float:
    """Parse ``none``, ``zero`` or a share for each day such as ``10%``; return the share. Raise ValueError."""
    named = {"none": 0.0, "zero": 1.0}.get(text.strip())
    if named is not None:
        return named
    share = re.fullmatch(r"(\d+(?:\.\d+)?) ?[%％]", text.strip())
    if share is None or not 0 < float(share[1]) <= 100:
        raise Problem(
            en=f"the rule for late work is none, zero, or a share for each day such as 10%, got {text!r}",
            zh=f"迟交规则可以是 none、zero，或每天扣的比例，例如 10%，现在是 {text!r}",
        )
    return float(share[1]) / 100


@dataclass(frozen=True)
class Released:
    """The outcome of a release: written and unchanged files, and students who left the roster."""

    folder: ClassFolder
    written: list[Path]
    kept: list[Path]
    gone: list[Student]


def release(
    assignment: Assignment,
    path: Path,
    students: list[Student],
    language: str,
    deadline: datetime | None = None,
    force: bool = False,
    late_rate: float | None = None,
) -> Released:
    """Create the class folder ``path``, or add the new students of the roster to it.

    Existing editions stay as they are; ``force`` writes them again, with the same numbers and tags. Raise Problem if
    the folder belongs to another release, and OSError if it cannot be written.
    """
    if (path / CLASS_FILE).exists():
        folder = open_class(path)
        if folder.assignment != assignment.name:
            raise Problem(
                en=f"{path} is the folder of another release ({folder.assignment}): name another one with --to",
                zh=f"{path} 是另一次发放（{folder.assignment}）的文件夹：请用 --to 指定别的",
            )
        rate = folder.late_rate if late_rate is None else late_rate
        folder = replace(folder, deadline=deadline or folder.deadline, late_rate=rate)
    elif path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise Problem(
            en=f"{path} exists, and is no class folder: name another one with --to",
            zh=f"{path} 已经存在，而且不是班级文件夹：请用 --to 指定别的",
        )
    else:
        secret = secrets.token_bytes(32)
        folder = ClassFolder(path, assignment.name, secret, {}, language, deadline, late_rate or 0.0)
    named = {student.id: student for student in students}
    gone = [student for student in folder.students.values() if student.id not in named]
    folder = replace(folder, students=folder.students | named)
    # Save the secret before writing editions, which depend on it.
    folder.save()
    if not assignment.is_built_in and not folder.own_assignment.exists():
        ignore = shutil.ignore_patterns("__pycache__", ".*")
        shutil.copytree(assignment.folder, folder.own_assignment, ignore=ignore)
    folder.submitted.mkdir(exist_ok=True)
    readme = folder.path / "README.txt"
    if not readme.exists():
        told = Path(__file__).with_name(f"readme.{get_language()}.txt").read_text("utf-8")
        write_whole(readme, told.format(assignment=folder.assignment))
    written, kept = [], []
    for student in students:
        file = folder.handout / student.id / f"{assignment.name}.ipynb"
        if file.exists() and not force:
            kept.append(file)
            continue
        file.parent.mkdir(parents=True, exist_ok=True)
        language, numbers = folder.language_of(student.id), numbers_of(folder, assignment, student.id)
        cells, asked = assignment.cells(language, numbers), assignment.question_facts(numbers)
        with using(language):
            if rule := folder.late_rule():
                cells[0] = replace(cells[0], source=f"{cells[0].source}\n\n{rule}")
            text = notebook(assignment.name, cells, student.id, folder.tag(student.id), asked)
        write_whole(file, text)
        written.append(file)
    return Released(folder, written, kept, gone)


def assignment_of(folder: ClassFolder) -> Assignment:
    """Return this class's assignment. Raise ValueError if it is missing."""
    own = folder.own_assignment
    return load(own if own.exists() else folder.assignment)


def numbers_of(folder: ClassFolder, assignment: Assignment, student: str) -> dict[str, int | str]:
    """Return the numbers of this student's edition."""
    return assignment.numbers(Draw.from_secret(folder.secret, student, folder.assignment, "numbers"))
