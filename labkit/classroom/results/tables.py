"""Marks as tables: for WPS and Excel, and in the columns of nbgrader, Canvas and Moodle.

All are in UTF-8 with a mark at the beginning, by which WPS and Excel know it. What a spreadsheet would take for a
formula is made text: names come from outside.
"""

from __future__ import annotations

import csv
import io
from datetime import datetime
from pathlib import Path

from ...base.files import write_whole
from ...base.language import say
from ..assignment import Assignment
from ..grade.marks import Mark, read
from ..handout.folder import ClassFolder, FolderError
from ..handout.release import assignment_of
from .html import points

_BOM = "\ufeff"
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def export(folder: ClassFolder, force: bool = False) -> list[Path]:
    """Write the tables into ``teacher/export``; FolderError if some are there and ``force`` is not given."""
    assignment = assignment_of(folder)
    marks = read(folder.marks)
    if not marks:
        raise FolderError(
            say(
                en=f"nothing is graded in {folder.path} yet: labkit grade {folder.path}",
                zh=f"{folder.path} 还没有批改过：请先运行 labkit grade {folder.path}",
            )
        )
    target = folder.teacher / "export"
    tables = {
        "marks.csv": _marks(folder, assignment, marks),
        "nbgrader.csv": _nbgrader(folder, assignment, marks),
        "canvas.csv": _canvas(folder, assignment, marks),
        "moodle.csv": _moodle(folder, assignment, marks),
    }
    there = [target / name for name in tables if (target / name).exists()]
    if there and not force:
        raise FolderError(
            say(
                en=f"{there[0]} exists: --force overwrites the tables in {target}",
                zh=f"{there[0]} 已经存在：加 --force 会覆盖 {target} 里的表",
            )
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


def _total(mark: Mark | None) -> str:
    return "" if mark is None else points(mark.points)


def _kinds(mark: Mark) -> set[str]:
    return {note.kind for note in mark.notes}


def _marks(folder: ClassFolder, assignment: Assignment, marks: dict[str, Mark]) -> list[list[str]]:
    more = list(dict.fromkeys(title for student in folder.students.values() for title in student.more))
    rows = [[
        say(en="id", zh="学号"), say(en="name", zh="姓名"), *more,
        *(f"{question.title} ({points(question.points)})" for question in assignment.questions),
        say(en="total", zh="总分"), say(en="of", zh="满分"), say(en="remarks", zh="备注"),
    ]]  # fmt: skip
    for student in folder.students.values():
        mark = marks.get(student.id)
        remarks = []
        if mark is None:
            remarks.append(say(en="no submission", zh="未提交"))
        elif "late" in _kinds(mark):
            remarks.append(say(en="late", zh="迟交"))
        each = []
        for question in assignment.questions:
            answered = mark.questions.get(question.id) if mark else None
            each.append("" if answered is None or answered.state == "unanswered" else points(answered.points))
        rows.append([
            student.id, student.name, *(student.more.get(title, "") for title in more), *each,
            _total(mark), points(assignment.points), "; ".join(remarks),
        ])  # fmt: skip
    return rows


def _nbgrader(folder: ClassFolder, assignment: Assignment, marks: dict[str, Mark]) -> list[list[str]]:
    """The columns of ``nbgrader export``."""
    rows = [[
        "assignment", "duedate", "timestamp", "student_id", "last_name", "first_name", "email",
        "raw_score", "late_submission_penalty", "score", "max_score",
    ]]  # fmt: skip
    due = folder.deadline.isoformat() if folder.deadline else ""
    for student in folder.students.values():
        first, last = _two_names(student.name)
        mark = marks.get(student.id)
        score = points(mark.points) if mark else "0"
        rows.append([
            assignment.name, due, _moment(mark), student.id, last, first, student.email,
            score, "0", score, points(assignment.points),
        ])  # fmt: skip
    return rows


def _moment(mark: Mark | None) -> str:
    return "" if mark is None else datetime.fromisoformat(mark.when).isoformat()


def _canvas(folder: ClassFolder, assignment: Assignment, marks: dict[str, Mark]) -> list[list[str]]:
    """What Canvas' gradebook imports: it knows the students by their SIS ids."""
    title = f"{assignment.title}"
    rows = [["Student", "ID", "SIS User ID", "SIS Login ID", "Section", title]]
    rows.append(["    Points Possible", "", "", "", "", points(assignment.points)])
    for student in folder.students.values():
        rows.append([student.name, "", student.id, "", "", _total(marks.get(student.id))])
    return rows


def _moodle(folder: ClassFolder, assignment: Assignment, marks: dict[str, Mark]) -> list[list[str]]:
    """What Moodle's grade import takes: it knows the students by their ID number, or the address."""
    rows = [["ID number", "First name", "Last name", "Email address", f"{assignment.title}"]]
    for student in folder.students.values():
        first, last = _two_names(student.name)
        rows.append([student.id, first, last, student.email, _total(marks.get(student.id))])
    return rows


# Surnames of two characters that are met; of any other Chinese name the first is the surname.
_DOUBLE = tuple(
    "欧阳 上官 司马 东方 诸葛 夏侯 皇甫 公孙 慕容 司徒 令狐 宇文 长孙 尉迟 轩辕 端木 独孤 南宫 西门 呼延".split()
)


def _two_names(name: str) -> tuple[str, str]:
    """(first name, last name), for systems that ask for both."""
    if " " in name:
        first, _, last = name.rpartition(" ")
        return first, last
    if name and "一" <= name[0] <= "鿿":
        size = 2 if len(name) > 2 and name.startswith(_DOUBLE) else 1
        return name[size:], name[:size]
    return name, ""
