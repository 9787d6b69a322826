"""What grading leaves behind for people: a page for each student, and an overview for the teacher."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ...base.files import write_whole
from ...base.language import using
from ..assignment import Assignment
from ..grade.marks import Mark, history
from ..handout.folder import ClassFolder
from ..handout.release import assignment_of, numbers_of
from ..intake.answers import Answers
from ..intake.collecting import Collection, collect, read_submission, strangers_of
from .feedback import feedback_page, no_submission_page
from .overview import Class, overview_page
from .similar import similar


def present(folder: ClassFolder) -> list[Path]:
    """Write ``feedback/<id>.html``, each in its student's language, and ``teacher/overview.html``; gives their paths.

    They are made from the marks anew each time, so they replace those of an earlier grading, whose marks stay in
    ``teacher/marks.jsonl``. OSError if one cannot be written.
    """
    assignment = assignment_of(folder)
    all_marks = {id: marks for id, marks in history(folder.marks).items() if id in folder.students}
    marks = {student: mine[-1] for student, mine in all_marks.items()}
    before = {
        student: mine[-2].points
        for student, mine in all_marks.items()
        if len(mine) > 1 and mine[-2].points != mine[-1].points
    }
    came = collect(folder)
    answers = {student: read_submission(folder, assignment, came, student) for student in came.submissions}
    strange = strangers_of(came, folder)
    written = []
    for student in folder.students.values():
        with using(folder.language_of(student.id)):
            if student.id in marks:
                mark = marks[student.id]
                # The answers that were graded; a file that came since shows with the next grading.
                mine = answers.get(student.id)
                current = mine.answers if mine and mine.digest == mark.digest else {}
                text = feedback_page(assignment, student, mark, current, mark.notes)
            elif student.id in strange:
                text = no_submission_page(assignment, student, strange[student.id])
            else:
                continue
        folder.feedback.mkdir(exist_ok=True)
        file = folder.feedback / f"{student.id}.html"
        write_whole(file, text)
        written.append(file)
    overview = folder.teacher / "overview.html"
    write_whole(overview, overview_page(_class(folder, assignment, marks, before, came, answers)))
    return [*written, overview]


def _class(
    folder: ClassFolder,
    assignment: Assignment,
    marks: Mapping[str, Mark],
    before: Mapping[str, float],
    came: Collection,
    answers: Mapping[str, Answers],
) -> Class:
    known: dict[str, list[str]] = {question.id: [] for question in assignment.questions}
    for student in answers:
        numbers = numbers_of(folder, assignment, student)
        for question in assignment.questions:
            known[question.id] += [question.stub(numbers), question.solution(numbers)]
    return Class(
        folder,
        assignment,
        marks,
        before,
        notes={student: mark.notes for student, mark in marks.items()},
        missing=came.missing,
        strangers=came.strangers,
        similar=similar(
            {student: found.answers for student, found in answers.items()},
            {question: list(dict.fromkeys(sources)) for question, sources in known.items()},
        ),
    )
