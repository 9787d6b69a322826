"""Write an assignment for nbgrader: its source edition, a configuration, and the test cells.

nbgrader runs its tests in the student's kernel, where a student's code can read the hidden cell. ``labkit grade`` takes
the same notebooks and uses a sandbox.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

from labkit.base.files import write_whole
from labkit.base.language import using

from .assignment import Assignment, EditionCell, Question, load, notebook
from .draw import Draw
from .in_kernel import call_in_kernel
from .judging import share_kept
from .messages import Problem

CONFIG = Path(__file__).with_name("nbgrader_config.txt").read_text("utf-8")


def write_course(assignment: Assignment, course: Path, language: str, force: bool = False) -> list[Path]:
    """Write ``source/NAME/NAME.ipynb`` into an nbgrader course, and a configuration if it has none.

    Return the written files. Raise Problem if the notebook exists, unless ``force``.
    """
    file = course / "source" / assignment.name / f"{assignment.name}.ipynb"
    if file.exists() and not force:
        raise Problem(en=f"{file} exists: --force overwrites it", zh=f"{file} 已经存在：加 --force 会覆盖它")
    file.parent.mkdir(parents=True, exist_ok=True)
    with using(language):
        write_whole(file, source(assignment, language, secrets.token_hex(16)))
    config = course / "nbgrader_config.py"
    if config.exists():
        return [file]
    write_whole(config, CONFIG)
    return [file, config]


def source(assignment: Assignment, language: str, seed: str) -> str:
    """Return nbgrader's source edition: solutions and hidden tests between nbgrader's marks, metadata on every cell.

    seed   the seed of the hidden cases, in hexadecimal.
    """
    numbers = assignment.numbers(None)
    made: list[EditionCell] = []
    more: dict[str, dict[str, Any]] = {}
    questions = {question.id: question for question in assignment.questions}
    cells = assignment.cells(language, numbers)
    for cell, following in zip_longest(cells, cells[1:]):
        asked = questions.get(cell.question or "")
        if cell.role == "answer" and asked:
            cell = replace(
                cell, source=asked.solution_between("### BEGIN SOLUTION", "### END SOLUTION", numbers)
            )
            more[cell.id] = _nbgrader_metadata(asked.id, solution=True)
        elif cell.role != "free":
            more[cell.id] = _nbgrader_metadata(f"{cell.id}-given", locked=True)
        made.append(cell)
        if asked and f"{asked.id}-tests" not in more and not (following and following.role == "check"):
            id = f"{asked.id}-tests"
            made.append(EditionCell(id, "tests", _tests(assignment, asked, seed), asked.id))
            more[id] = _nbgrader_metadata(id, grade=True, locked=True, points=asked.points)
    return notebook(assignment.name, made, more=more)


def points(question: str, answers: Mapping[str, Any], *, seed: str, folder: str | None = None) -> float:
    """Return an answer's points, the value of nbgrader's test cell, and print the hints.

    question   ``"assignment.question"``.
    answers    the notebook's ``globals()``.
    folder     the folder of a teacher's own assignment.
    """
    name, _, id = question.partition(".")
    assignment = load(Path(folder) if folder else name)
    found = next(asked for asked in assignment.questions if asked.id == id)
    numbers = assignment.numbers(None)
    total = 0.0
    draw = Draw.from_secret(bytes.fromhex(seed), name, id)
    for part in found.parts:
        hint = part.judge(call_in_kernel(answers), draw.with_numbers(numbers))
        got = share_kept(hint) * part.points
        total += got
        print(f"{got:g}/{part.points:g}  {part.what}{f': {hint}' if hint else ''}")
    return total


def _nbgrader_metadata(id: str, **said: Any) -> dict[str, Any]:
    usual = dict.fromkeys(("grade", "solution", "locked", "task"), False)
    return {"nbgrader": usual | {"schema_version": 3, "grade_id": id} | said}


def _tests(assignment: Assignment, question: Question, seed: str) -> str:
    folder = "" if assignment.is_built_in else f", folder={str(assignment.folder)!r}"
    return (
        "### BEGIN HIDDEN TESTS\n"
        "from labkit.classroom.nbgrader import points\n\n"
        f'points("{assignment.name}.{question.id}", globals(), seed="{seed}"{folder})\n'
        "### END HIDDEN TESTS"
    )
