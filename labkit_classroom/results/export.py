"""Write the marks as a table: for spreadsheets, or in the form that Canvas or Moodle imports.

All tables are CSV in UTF-8. Those for spreadsheets begin with a byte order mark, which WPS and Excel need. Cells that a
spreadsheet would run as a formula become text.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from pathlib import Path

from labkit.base.files import write_whole
from labkit.base.language import series

from ..assignment import Assignment
from ..grade.marks import StudentMark, read
from ..handout.folder import ClassFolder, assignment_of
from ..handout.roster import Student
from ..intake.collecting import Collection, collect, group_files
from ..messages import Problem
from .page import format_question_points, points, text

FORMS = ("spreadsheet", "canvas", "moodle")
_MOODLE_IDS = "ID number", "Email address"
_IDS = {*_MOODLE_IDS, "Identifier", "ID", "SIS User ID", "SIS Login ID"}
# Canvas takes these titles for its own columns, and ignores each column whose title holds one of the last.
_CANVAS_OWN = re.compile(
    "(Student|LastName|FirstName|ID|SIS User ID|SIS Login ID|Integration ID|Root Account|Section|Notes)"
    "|.*((Current|Final) (Score|Points|Grade)|Override (Score|Grade|Status)).*",
    re.DOTALL,
)
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def export(folder: ClassFolder, form: str = "spreadsheet", title: str = "", force: bool = False) -> Path:
    """Write ``teacher/export/marks.csv``, or ``canvas.csv`` or ``moodle.csv``; return the path.

    title   the assignment's name on the platform, if it differs from ours.

    Raise Problem if nothing is graded, or if the file exists, unless ``force``.
    """
    assignment = assignment_of(folder)
    marks = read(folder.marks)
    if not marks:
        raise Problem(
            en=f"nothing is graded in {folder.path} yet: labkit grade {folder.path}",
            zh=f"{folder.path} 还没有批改过：请先运行 labkit grade {folder.path}",
        )
    target = folder.teacher / "export" / ("marks.csv" if form == "spreadsheet" else f"{form}.csv")
    if target.exists() and not force:
        raise Problem(
            en=f"{target} exists: --force overwrites it", zh=f"{target} 已经存在：加 --force 会覆盖它"
        )
    students, title, mark = list(folder.students.values()), title or str(assignment.title), ""
    if form == "spreadsheet":
        came, mark = collect(folder), "\ufeff"
        rows = [_spreadsheet_row(student, marks.get(student.id), assignment, came) for student in students]
    elif form == "canvas":
        rows = _canvas_rows(students, marks, title, assignment.points)
    else:
        rows = [_moodle_row(student, marks.get(student.id), assignment.points) for student in students]
    titles = dict.fromkeys(column for row in rows for column in row)
    optional = text("email"), "Identifier"
    columns = [one for one in titles if one not in optional or any(row.get(one) for row in rows)]
    if form == "moodle":  # its import gives the marks of a row without an id to the student of the row above
        columns = [one for one in columns if one not in _MOODLE_IDS or all(row[one] for row in rows)]
    target.parent.mkdir(parents=True, exist_ok=True)
    table = [columns, *([row.get(column, "") for column in columns] for row in rows)]
    ids = [at for at, column in enumerate(columns) if form != "spreadsheet" and column in _IDS]
    write_whole(target, mark + as_csv(table, ids))
    return target


def _spreadsheet_row(
    student: Student, mark: StudentMark | None, assignment: Assignment, came: Collection
) -> dict[str, str]:
    row = {text("id"): student.id, text("name"): student.name, text("email"): student.email, **student.more}
    for one in assignment.questions:
        row[f"{one.title} ({points(one.points)})"] = format_question_points(mark, one.id) if mark else ""
    row |= {text("total"): points(mark.points) if mark else "", text("of"): points(assignment.points)}
    if not mark:
        files = came.unreadable.get(student.id, [])
        remarks = [text("unreadable"), *group_files(files)] if files else [text("no-submission")]
    else:
        late = any(note.kind == "late" for note in mark.notes)
        remarks = [text("late") if mark.share == 1 else text("late-share", share=f"{mark.share:.0%}")] * late
        remarks += [text("hand-column", listed=series(sorted(mark.by_hand)))] * bool(mark.by_hand)
    return row | {text("remarks"): "; ".join(remarks)}


def _canvas_rows(
    students: list[Student], marks: dict[str, StudentMark], title: str, most: float
) -> list[dict[str, str]]:
    """Return the rows that Canvas's gradebook imports. A student without a mark has an empty cell, not 0."""
    if _CANVAS_OWN.fullmatch(title):
        raise Problem(
            en=f"Canvas would not import marks under the title {title!r}, which it keeps for a column of its own: name "
            "another one with --title. Canvas goes by the number in brackets, if there is one: “Lab 1 (882)”",
            zh=f"Canvas 把 {title!r} 这样的列名留给自己的列，不会导入这一列的成绩：请用 --title 换一个名称。"
            "列名里有作业编号时，Canvas 只认编号，例如 “Lab 1 (882)”",
        )
    # In a gradebook exported by Canvas, the column ID is Canvas's number. Other ids are in the institution's system.
    own = any("SIS Login ID" in student.more for student in students)
    rows = [
        dict.fromkeys(("Student", "ID", "SIS User ID", "SIS Login ID", "Section"), "") | {title: points(most)}
    ]
    rows[0]["Student"] = "    Points Possible"
    for student in students:
        known = {
            column: student.more.get(column, "") for column in rows[0] if column not in ("Student", title)
        }
        known["ID" if own and not known["ID"] else "SIS User ID"] = student.id
        mark = marks.get(student.id)
        rows.append({"Student": student.name} | known | {title: points(mark.points) if mark else ""})
    return rows


def _moodle_row(student: Student, mark: StudentMark | None, most: float) -> dict[str, str]:
    """Return a row for Moodle's grade import, and for its grading worksheet if the roster was one (Identifier)."""
    return {
        "Identifier": student.more.get("Identifier", ""),
        "Full name": student.name,
        "ID number": "" if student.id == student.email else student.id,
        "Email address": student.email,
        "Grade": points(mark.points) if mark else "",
        "Maximum Grade": points(most),
        "Last modified (grade)": student.more.get("Last modified (grade)", "-"),
        "Feedback comments": "; ".join(str(note) for note in mark.notes) if mark else "",
    }


def as_csv(rows: list[list[str]], ids: Sequence[int] = ()) -> str:
    """Return the rows as CSV. ``ids``: columns that a platform compares, which stay as they are."""
    stream = io.StringIO(newline="")
    safe = [[cell if at in ids else _as_text(cell) for at, cell in enumerate(row)] for row in rows]
    csv.writer(stream, lineterminator="\r\n").writerows(safe)
    return stream.getvalue()


def _as_text(cell: str) -> str:
    """Return ``cell``, marked as text if a spreadsheet would run it as a formula."""
    number = cell.removeprefix("-").replace(".", "", 1).isdecimal()
    return f"'{cell}" if cell.startswith(_FORMULA) and cell != "-" and not number else cell
