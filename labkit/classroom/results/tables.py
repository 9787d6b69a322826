"""Marks as tables: for WPS and Excel, and in the columns of nbgrader, Canvas and Moodle.

All are in UTF-8 with a mark at the beginning, by which WPS and Excel know it. What a spreadsheet would take for a
formula is made text: names come from outside.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from ...base.files import write_whole
from ..assignment import Assignment
from ..grade.marks import Mark, read
from ..handout.folder import ClassFolder
from ..handout.release import assignment_of
from ..handout.roster import Student
from ..words import Problem
from .page import points, text

_BOM = "\ufeff"
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
# Surnames of two characters that are met; of any other Chinese name the first is the surname.
_DOUBLE = tuple(
    "欧阳 上官 司马 东方 诸葛 夏侯 皇甫 公孙 慕容 司徒 令狐 宇文 长孙 尉迟 轩辕 端木 独孤 南宫 西门 呼延".split()
)


def export(folder: ClassFolder, force: bool = False) -> list[Path]:
    """Write the tables into ``teacher/export``; Problem if some are there and ``force`` is not given."""
    assignment = assignment_of(folder)
    marks = read(folder.marks)
    if not marks:
        raise Problem(
            en=f"nothing is graded in {folder.path} yet: labkit grade {folder.path}",
            zh=f"{folder.path} 还没有批改过：请先运行 labkit grade {folder.path}",
        )
    target = folder.teacher / "export"
    lines = [_Line(student, marks.get(student.id)) for student in folder.students.values()]
    tables = {
        name: [[title for title, _ in columns], *([value(line) for _, value in columns] for line in lines)]
        for name, columns in _columns(folder, assignment).items()
    }
    tables["canvas.csv"].insert(1, ["    Points Possible", "", "", "", "", points(assignment.points)])
    there = [target / name for name in tables if (target / name).exists()]
    if there and not force:
        raise Problem(
            en=f"{there[0]} exists: --force overwrites the tables in {target}",
            zh=f"{there[0]} 已经存在：加 --force 会覆盖 {target} 里的表",
        )
    target.mkdir(parents=True, exist_ok=True)
    for name, rows in tables.items():
        write_whole(target / name, as_csv(rows))
    return [target / name for name in tables]


def as_csv(rows: list[list[str]]) -> str:
    """The rows as WPS and Excel open them."""
    stream = io.StringIO(newline="")
    csv.writer(stream, lineterminator="\r\n").writerows([[_harmless(cell) for cell in row] for row in rows])
    return _BOM + stream.getvalue()


def _harmless(cell: str) -> str:
    """``cell``, which no spreadsheet takes for a formula."""
    number = cell.removeprefix("-").replace(".", "", 1).isdecimal()
    return f"'{cell}" if cell.startswith(_FORMULA) and not number else cell


@dataclass(frozen=True)
class _Line:
    """A student and their mark, None if there is none."""

    student: Student
    mark: Mark | None

    @property
    def names(self) -> tuple[str, str]:
        """(first name, last name), for systems that ask for both."""
        name = self.student.name
        if " " in name:
            first, _, last = name.rpartition(" ")
            return first, last
        if name and "一" <= name[0] <= "鿿":
            size = 2 if len(name) > 2 and name.startswith(_DOUBLE) else 1
            return name[size:], name[:size]
        return name, ""

    @property
    def total(self) -> str:
        return points(self.mark.points) if self.mark else ""

    def of(self, question: str) -> str:
        if self.mark is None:
            return ""
        answered = self.mark.questions.get(question)
        judged = question in self.mark.by_hand or (answered is not None and answered.state != "unanswered")
        return points(self.mark.counted[question]) if judged else ""

    @property
    def remarks(self) -> str:
        if self.mark is None:
            return text("no-submission")
        late = [text("late")] if any(note.kind == "late" for note in self.mark.notes) else []
        hands = (
            [text("hand-column", listed=", ".join(sorted(self.mark.by_hand)))] if self.mark.by_hand else []
        )
        return "; ".join(late + hands)


# The columns of a table: (title, what stands in it for a student).
_Columns = list[tuple[str, Callable[[_Line], str]]]


def _columns(folder: ClassFolder, assignment: Assignment) -> dict[str, _Columns]:
    """The columns of each table, by its file's name."""
    most = points(assignment.points)
    more = dict.fromkeys(title for student in folder.students.values() for title in student.more)
    heads = {one.id: f"{one.title} ({points(one.points)})" for one in assignment.questions}
    due = folder.deadline.isoformat() if folder.deadline else ""
    return {
        "marks.csv": [
            (text("id"), lambda line: line.student.id),
            (text("name"), lambda line: line.student.name),
            *((title, lambda line, title=title: line.student.more.get(title, "")) for title in more),
            *((heads[id], lambda line, id=id: line.of(id)) for id in heads),
            (text("total"), lambda line: line.total),
            (text("of"), lambda line: most),
            (text("remarks"), lambda line: line.remarks),
        ],
        "nbgrader.csv": [  # those of `nbgrader export`
            ("assignment", lambda line: assignment.name),
            ("duedate", lambda line: due),
            (
                "timestamp",
                lambda line: datetime.fromisoformat(line.mark.when).isoformat() if line.mark else "",
            ),
            ("student_id", lambda line: line.student.id),
            ("last_name", lambda line: line.names[1]),
            ("first_name", lambda line: line.names[0]),
            ("email", lambda line: line.student.email),
            ("raw_score", lambda line: line.total or "0"),
            ("late_submission_penalty", lambda line: "0"),
            ("score", lambda line: line.total or "0"),
            ("max_score", lambda line: most),
        ],
        "canvas.csv": [  # what Canvas' gradebook imports: it knows the students by their SIS ids
            ("Student", lambda line: line.student.name),
            ("ID", lambda line: ""),
            ("SIS User ID", lambda line: line.student.id),
            ("SIS Login ID", lambda line: ""),
            ("Section", lambda line: ""),
            (str(assignment.title), lambda line: line.total),
        ],
        "moodle.csv": [  # what Moodle's grade import takes: it knows the students by ID number, or by address
            ("ID number", lambda line: line.student.id),
            ("First name", lambda line: line.names[0]),
            ("Last name", lambda line: line.names[1]),
            ("Email address", lambda line: line.student.email),
            (str(assignment.title), lambda line: line.total),
        ],
    }
