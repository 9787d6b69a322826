"""Marks as a table that every spreadsheet and learning platform reads.

It is in UTF-8 with a mark at the beginning, by which WPS and Excel know it. What a spreadsheet would take for a formula
is made text: names come from outside.
"""

from __future__ import annotations

import csv
import io
from pathlib import Path

from ...base.files import write_whole
from ...base.language import series
from ..assignment import Assignment
from ..grade.marks import Mark, read
from ..handout.folder import ClassFolder
from ..handout.release import assignment_of
from ..handout.roster import Student
from ..words import Problem
from .page import points, shown, text

_BOM = "\ufeff"
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def export(folder: ClassFolder, force: bool = False) -> Path:
    """Write ``teacher/export/marks.csv``; Problem if it is there and ``force`` is not given."""
    assignment = assignment_of(folder)
    marks = read(folder.marks)
    if not marks:
        raise Problem(
            en=f"nothing is graded in {folder.path} yet: labkit grade {folder.path}",
            zh=f"{folder.path} 还没有批改过：请先运行 labkit grade {folder.path}",
        )
    target = folder.teacher / "export" / "marks.csv"
    if target.exists() and not force:
        raise Problem(
            en=f"{target} exists: --force overwrites it", zh=f"{target} 已经存在：加 --force 会覆盖它"
        )
    rows = [_row(student, marks.get(student.id), assignment) for student in folder.students.values()]
    titles = dict.fromkeys(title for row in rows for title in row)
    if text("email") in titles and not any(row[text("email")] for row in rows):
        del titles[text("email")]
    target.parent.mkdir(parents=True, exist_ok=True)
    write_whole(target, as_csv([list(titles), *([row.get(title, "") for title in titles] for row in rows)]))
    return target


def _row(student: Student, mark: Mark | None, assignment: Assignment) -> dict[str, str]:
    """What stands in each column for a student."""
    row = {text("id"): student.id, text("name"): student.name, text("email"): student.email, **student.more}
    for one in assignment.questions:
        row[f"{one.title} ({points(one.points)})"] = shown(mark, one.id) if mark else ""
    row[text("total")] = points(mark.points) if mark else ""
    row[text("of")] = points(assignment.points)
    remarks = [] if mark else [text("no-submission")]
    if mark and any(note.kind == "late" for note in mark.notes):
        remarks.append(text("late"))
    if mark and mark.by_hand:
        remarks.append(text("hand-column", listed=series(sorted(mark.by_hand))))
    return row | {text("remarks"): "; ".join(remarks)}


def as_csv(rows: list[list[str]]) -> str:
    """The rows as WPS and Excel open them."""
    stream = io.StringIO(newline="")
    csv.writer(stream, lineterminator="\r\n").writerows([[_harmless(cell) for cell in row] for row in rows])
    return _BOM + stream.getvalue()


def _harmless(cell: str) -> str:
    """``cell``, which no spreadsheet takes for a formula."""
    number = cell.removeprefix("-").replace(".", "", 1).isdecimal()
    return f"'{cell}" if cell.startswith(_FORMULA) and not number else cell
