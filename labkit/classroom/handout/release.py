"""Writes an edition for each student, and the files that stay with the teacher."""

from __future__ import annotations

import secrets
import shutil
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from ...base.files import write_whole
from ...base.language import get_language, using
from ..assignment import Assignment, load
from ..draw import Draw
from ..words import Problem
from .edition import notebook
from .folder import CLASS_FILE, ClassFolder, open_class
from .roster import Student


@dataclass(frozen=True)
class Released:
    """The files that were written, those that stayed as they were, and the students who left the roster."""

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
) -> Released:
    """Write the class folder ``path``, or add to it who is new on the roster.

    A class keeps its secret, and each student the edition that was given out; ``force`` writes all editions again,
    with the same numbers and tags. Problem if the folder is another's; OSError if it cannot be written.
    """
    if (path / CLASS_FILE).exists():
        folder = open_class(path)
        if folder.assignment != assignment.name:
            raise Problem(
                en=f"{path} is the folder of another release ({folder.assignment}): name another one with --to",
                zh=f"{path} 是另一次发放（{folder.assignment}）的文件夹：请用 --to 指定别的",
            )
        folder = replace(folder, deadline=deadline or folder.deadline)
    elif path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise Problem(
            en=f"{path} exists, and is no class folder: name another one with --to",
            zh=f"{path} 已经存在，而且不是班级文件夹：请用 --to 指定别的",
        )
    else:
        folder = ClassFolder(path, assignment.name, secrets.token_bytes(32), {}, language, deadline)
    named = {student.id for student in students}
    gone = [student for student in folder.students.values() if student.id not in named]
    folder = folder.with_students(students)
    # The secret is on the disk before the first edition that depends on it.
    folder.save()
    if not assignment.built_in and not folder.own_assignment.exists():
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
        cells, asked = assignment.cells(language, numbers), assignment.asked(numbers)
        with using(language):
            text = notebook(assignment.name, cells, student.id, folder.tag(student.id), asked)
        write_whole(file, text)
        written.append(file)
    return Released(folder, written, kept, gone)


def assignment_of(folder: ClassFolder) -> Assignment:
    """The assignment that this class was given; ValueError if it cannot be found any more."""
    own = folder.own_assignment
    return load(own if own.exists() else folder.assignment)


def numbers_of(folder: ClassFolder, assignment: Assignment, student: str) -> dict[str, int | str]:
    """The numbers in this student's edition."""
    return assignment.numbers(Draw.of(folder.secret, student, folder.assignment, "numbers"))
