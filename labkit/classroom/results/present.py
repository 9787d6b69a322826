"""Writes a page for each student, and an overview for the teacher."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ...base.files import write_whole
from ...base.language import using
from ..assignment import Assignment
from ..grade.marks import history
from ..handout.folder import ClassFolder
from ..handout.release import assignment_of, numbers_of
from ..intake.answers import Answers
from ..intake.collecting import Collection, strangers_of, take_in
from .feedback import feedback_page, no_submission_page
from .overview import Class, overview_page
from .similar import Group, similar


def present(
    folder: ClassFolder, came: Collection | None = None, answers: Mapping[str, Answers] | None = None
) -> list[Path]:
    """Write ``feedback/<id>.html``, each in its student's language, and ``teacher/overview.html``; gives their paths.

    They are made from the marks anew each time, so they replace those of an earlier grading, whose marks stay in
    ``teacher/marks.jsonl``. OSError if one cannot be written.

    came, answers   what has been taken in already, where a grading has just done so.
    """
    assignment = assignment_of(folder)
    if came is None or answers is None:
        came, answers = take_in(folder, assignment)
    graded = {id: marks for id, marks in history(folder.marks).items() if id in folder.students}
    marks = {student: mine[-1] for student, mine in graded.items()}
    former = {student: mine[-2].points for student, mine in graded.items() if len(mine) > 1}
    before = {student: points for student, points in former.items() if points != marks[student].points}
    strange = strangers_of(came, folder)
    written = []
    for student in folder.students.values():
        with using(folder.language_of(student.id)):
            if student.id in marks:
                mark = marks[student.id]
                # The answers that were graded; a file that came since shows with the next grading.
                mine = answers.get(student.id)
                current = mine.answers if mine and mine.digest == mark.digest else {}
                page = feedback_page(assignment, student, mark, current)
            elif student.id in strange:
                page = no_submission_page(assignment, student, strange[student.id])
            else:
                continue
        folder.feedback.mkdir(exist_ok=True)
        written.append(folder.feedback / f"{student.id}.html")
        write_whole(written[-1], page)
    alike = _similar(folder, assignment, answers)
    written.append(folder.teacher / "overview.html")
    write_whole(written[-1], overview_page(Class(folder, assignment, marks, before, came, alike)))
    return written


def _similar(folder: ClassFolder, assignment: Assignment, answers: Mapping[str, Answers]) -> list[Group]:
    """Answers that are alike, or like the solution, apart from what the notebooks gave."""
    numbers = {student: numbers_of(folder, assignment, student) for student in answers}
    stubs = {one.id: list({one.stub(mine) for mine in numbers.values()}) for one in assignment.questions}
    solutions = {
        student: {one.id: one.solution(mine) for one in assignment.questions}
        for student, mine in numbers.items()
    }
    return similar({student: found.answers for student, found in answers.items()}, stubs, solutions)
