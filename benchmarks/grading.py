"""What grading costs: ``labkit grade`` on a class's submissions of ``primitives``, as students hand them in.

python benchmarks/grading.py [SUBMISSIONS]

Each answer is drawn (seed 0): three of five are the solution, the others are the mistakes and the unusual right answers
that the tests hold (``tests/classroom``), an endless loop among them. Counted is the processor's time of all processes,
workers included, start-up shared out; memory is what they hold together (PSS), looked at five times a second. Beside
it nbgrader's autograde of the solution, in one kernel for each.
"""

from __future__ import annotations

import json
import os
import random
import re
import resource
import runpy
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from pairs import bound, report

from labkit_classroom.assignment import fill_numbers, load
from labkit_classroom.grade.marks import read
from labkit_classroom.handout.folder import numbers_of, release
from labkit_classroom.handout.roster import Student
from labkit_classroom.nbgrader import write_course
from labkit_classroom.sandbox.inside.processes import descendants

ROOT = Path(__file__).parent.parent
TESTS = ROOT / "tests" / "classroom"
ASSIGNMENT = "primitives"


def run(*command: object, cwd: Path) -> tuple[float, float]:
    """Runs a command; gives its processor's seconds and the most memory in MiB."""
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "JUPYTER_CONFIG_DIR": str(cwd / ".jupyter"),
        "JUPYTER_DATA_DIR": str(cwd / ".data"),
        "IPYTHONDIR": str(cwd / ".ipython"),
    }
    before, most = resource.getrusage(resource.RUSAGE_CHILDREN), 0
    with open(cwd / "log", "wb") as log:
        process = subprocess.Popen(list(map(str, command)), cwd=cwd, env=environment, stdout=log, stderr=log)
        while process.poll() is None:
            most = max(most, sum(map(held, [process.pid, *descendants(process.pid)])))
            time.sleep(0.2)
    if process.returncode:
        sys.exit((cwd / "log").read_text("utf-8")[-2000:])
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, most / 1024


def held(pid: int) -> int:
    """The KiB that a process holds, what it shares with others shared out."""
    with suppress(OSError):
        found = re.search(r"^Pss: +(\d+)", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
        return int(found[1]) if found else 0
    return 0


def by_labkit(folder: Path, count: int) -> tuple[float, float]:
    """The processor's seconds for ``count`` submissions, and the most memory."""
    assignment = load(ASSIGNMENT)
    students = [Student(f"s{k:04}", f"Student {k}") for k in range(count)]
    made = release(assignment, folder / "class", students, "en").folder
    others: dict[str, list[str]] = {}
    students_answers = runpy.run_path(str(TESTS / "students.py"))["answers"]
    for question, _, source in students_answers(ASSIGNMENT)[0].values():
        others.setdefault(question, []).append(source)
    text = (TESTS / "unusual.txt").read_text("utf-8")
    for question, source in re.findall(r"^=== .* \| (\w+)\n((?:(?!===).*\n)*)", text, re.MULTILINE):
        others.setdefault(question, []).append(source)
    drawn = random.Random(0)
    for student in students:
        numbers = numbers_of(made, assignment, student.id)
        answers = {
            question.id: question.solution(numbers)
            if drawn.random() < 0.6
            else fill_numbers(drawn.choice(others[question.id]), numbers)
            for question in assignment.questions
        }
        notebook = json.loads((made.handout / student.id / f"{ASSIGNMENT}.ipynb").read_text("utf-8"))
        answered(notebook, answers)
        (made.submitted / f"{student.id}.ipynb").write_text(json.dumps(notebook), "utf-8")
    taken = run(sys.executable, "-m", "labkit", "grade", made.path, "--jobs", 2, cwd=folder)
    marks = read(made.marks)
    assert len(marks) == count
    assert not any(mark.has_failed for mark in marks.values())
    return taken


def by_nbgrader(folder: Path, count: int) -> float:
    """The processor's seconds for ``count`` submissions."""
    assignment, course = load(ASSIGNMENT), folder / "course"
    course.mkdir()
    write_course(assignment, course, "en")
    run(sys.executable, "-m", "nbgrader", "generate_assignment", ASSIGNMENT, "--create", cwd=course)
    notebook = json.loads((course / "release" / ASSIGNMENT / f"{ASSIGNMENT}.ipynb").read_text("utf-8"))
    numbers = assignment.numbers(None)
    answered(notebook, {question.id: question.solution(numbers) for question in assignment.questions})
    for k in range(count):
        file = course / "submitted" / f"s{k:04}" / ASSIGNMENT / f"{ASSIGNMENT}.ipynb"
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps(notebook), "utf-8")
    return run(sys.executable, "-m", "nbgrader", "autograde", ASSIGNMENT, "--create", cwd=course)[0]


def answered(notebook, answers) -> None:
    for cell in notebook["cells"]:
        told = cell["metadata"].get("labkit", {})
        if told.get("role") == "answer":
            cell["source"] = f"# labkit: {ASSIGNMENT}.{told['question']}\n{answers[told['question']]}"


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    with tempfile.TemporaryDirectory() as folder:
        seconds, memory = by_labkit(Path(folder), count)
        report(f"labkit grade, {count} submissions: CPU for each", seconds / count, 1.5, " s")
        bound("the most memory, two at a time", memory, " MiB")
        few = max(2, count // 20)
        bound(
            f"nbgrader autograde, {few} submissions: CPU for each", by_nbgrader(Path(folder), few) / few, " s"
        )


if __name__ == "__main__":
    main()
