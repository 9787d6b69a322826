"""Grading a submission with ``labkit grade``, beside nbgrader's own autograde of equal work.

python benchmarks/grading.py [SUBMISSIONS]

The same notebooks (the reference solution of ``primitives``, warnings on stderr and all) are graded by both, with the
same hidden judges: by labkit behind its wall, two submissions at a time; by nbgrader in one kernel for each, one
after the other, as it does. Each figure is seconds on the clock for a submission, start-up shared out among them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter

from pairs import bound, report

from labkit.classroom.assignment import load
from labkit.classroom.grade.marks import read
from labkit.classroom.handout.release import release
from labkit.classroom.handout.roster import Student
from labkit.classroom.nbgrader import write_course

ROOT = Path(__file__).parent.parent
ASSIGNMENT = "primitives"


def run(*command: object, cwd: Path) -> float:
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "JUPYTER_CONFIG_DIR": str(cwd / ".jupyter"),
        "JUPYTER_DATA_DIR": str(cwd / ".data"),
        "IPYTHONDIR": str(cwd / ".ipython"),
    }
    started = perf_counter()
    subprocess.run(list(map(str, command)), cwd=cwd, env=environment, check=True, capture_output=True)
    return perf_counter() - started


def by_labkit(folder: Path, count: int) -> float:
    """Seconds for ``count`` submissions."""
    assignment = load(ASSIGNMENT)
    students = [Student(f"s{k:04}", f"Student {k}") for k in range(count)]
    made = release(assignment, folder / "class", students, "en").folder
    for student in students:
        notebook = json.loads((made.handout / student.id / f"{ASSIGNMENT}.ipynb").read_text("utf-8"))
        _solve(notebook, assignment)
        (made.submitted / f"{student.id}.ipynb").write_text(json.dumps(notebook), "utf-8")
    seconds = run(sys.executable, "-m", "labkit", "grade", made.path, "--jobs", 2, cwd=folder)
    marks = read(made.marks)
    assert len(marks) == count
    assert all(mark.points == assignment.points for mark in marks.values())
    return seconds


def by_nbgrader(folder: Path, count: int) -> float:
    """Seconds for ``count`` submissions."""
    assignment, course = load(ASSIGNMENT), folder / "course"
    course.mkdir()
    write_course(assignment, course, "en")
    run(sys.executable, "-m", "nbgrader", "generate_assignment", ASSIGNMENT, "--create", cwd=course)
    notebook = json.loads((course / "release" / ASSIGNMENT / f"{ASSIGNMENT}.ipynb").read_text("utf-8"))
    _solve(notebook, assignment)
    for k in range(count):
        file = course / "submitted" / f"s{k:04}" / ASSIGNMENT / f"{ASSIGNMENT}.ipynb"
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps(notebook), "utf-8")
    return run(sys.executable, "-m", "nbgrader", "autograde", ASSIGNMENT, "--create", cwd=course)


def _solve(notebook, assignment) -> None:
    numbers = assignment.numbers(None)
    solutions = {question.id: question.solution(numbers) for question in assignment.questions}
    for cell in notebook["cells"]:
        told = cell["metadata"].get("labkit", {})
        if told.get("role") == "answer":
            noise = "import warnings\nwarnings.warn('careful')\n"
            cell["source"] = (
                f"# labkit: {ASSIGNMENT}.{told['question']}\n{noise}{solutions[told['question']]}"
            )


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    with tempfile.TemporaryDirectory() as folder:
        ours = by_labkit(Path(folder), count) / count
        theirs_count = max(2, count // 20)
        theirs = by_nbgrader(Path(folder), theirs_count) / theirs_count
    bound(f"labkit grade, {count} submissions on 2 cores: a submission", ours, " s")
    bound(f"nbgrader autograde, {theirs_count} submissions: a submission", theirs, " s")
    report("labkit grade against nbgrader autograde, a submission of equal work", ours / theirs, 1)


if __name__ == "__main__":
    main()
