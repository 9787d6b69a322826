"""Marks as a table that every spreadsheet and learning platform reads.

It is in UTF-8 with a mark at the beginning, by which WPS and Excel know it. What a spreadsheet would take for a formula
is made text: names come from outside.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from dataclasses import dataclass
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
    columns = _columns(folder, assignment)
    lines = [_Line(student, marks.get(student.id)) for student in folder.students.values()]
    rows = [[title for title, _ in columns], *([value(line) for _, value in columns] for line in lines)]
    target.parent.mkdir(parents=True, exist_ok=True)
    write_whole(target, as_csv(rows))
    return target


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


# The columns of the table: (title, what stands in it for a student).
_Columns = list[tuple[str, Callable[[_Line], str]]]


def _columns(folder: ClassFolder, assignment: Assignment) -> _Columns:
    students = folder.students.values()
    more = dict.fromkeys(title for student in students for title in student.more)
    email: _Columns = [(text("email"), lambda line: line.student.email)]
    return [
        (text("id"), lambda line: line.student.id),
        (text("name"), lambda line: line.student.name),
        *(email if any(student.email for student in students) else []),
        *((title, lambda line, title=title: line.student.more.get(title, "")) for title in more),
        *(
            (f"{one.title} ({points(one.points)})", lambda line, id=one.id: line.of(id))
            for one in assignment.questions
        ),
        (text("total"), lambda line: line.total),
        (text("of"), lambda line: points(assignment.points)),
        (text("remarks"), lambda line: line.remarks),
    ]
