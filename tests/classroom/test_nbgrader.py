"""The real nbgrader takes our assignments: its own commands make the student edition, and give the marks."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from labkit_classroom.assignment import load
from labkit_classroom.nbgrader import points, source
from labkit_classroom.nbgrader import write_course as write

Gradebook = pytest.importorskip("nbgrader.api", reason="nbgrader is not installed").Gradebook
ROOT = Path(__file__).parents[2]
ANSWERS = {
    # Right, but noisy: a warning on stderr would cost nbgrader's marks.
    "loud": {"split": "import sys, warnings\n\ndef split(rows, gpus):\n    warnings.warn('careful')\n"
                      "    print('!', file=sys.stderr)\n    size = -(-rows // gpus)\n"
                      "    return [min(size, rows - at) for at in range(0, rows, size)]",
             "scatter": None},
    "wrong": {"split": "def split(rows, gpus):\n    return [rows]", "scatter": "def scatter(batch, count:"},
}  # fmt: skip


def nbgrader(course, *arguments):
    environment = (
        os.environ
        | {
            "PYTHONPATH": str(ROOT),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",  # it calls alembic by its name
            "JUPYTER_CONFIG_DIR": str(course / ".jupyter"), "JUPYTER_DATA_DIR": str(course / ".data"),
            "IPYTHONDIR": str(course / ".ipython"), "PYTHONWARNINGS": "ignore",
        }
    )  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "nbgrader", *arguments],
        cwd=course, env=environment, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def course(small, tmp_path_factory):
    """A course whose students have handed in, graded by nbgrader."""
    course = tmp_path_factory.mktemp("course")
    write(small, course, "zh")
    nbgrader(course, "generate_assignment", "small", "--create")
    released = json.loads((course / "release/small/small.ipynb").read_text("utf-8"))
    for student, answers in ANSWERS.items():
        mine = json.loads(json.dumps(released))
        for cell in mine["cells"]:
            question = cell["id"].removesuffix("-answer")
            if cell["id"].endswith("-answer") and answers[question]:
                cell["source"] = answers[question]
        file = course / "submitted" / student / "small" / "small.ipynb"
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps(mine), "utf-8")
    nbgrader(course, "autograde", "small", "--create")
    return course


def test_its_student_edition_has_no_solution_and_no_hidden_test(course):
    text = (course / "release/small/small.ipynb").read_text("utf-8")
    assert "raise NotImplementedError" in text
    for hidden in ("divmod", "HIDDEN TESTS", "SOLUTION", "seed=", "classroom.nbgrader"):
        assert hidden in (course / "source/small/small.ipynb").read_text("utf-8")
        assert hidden not in text


def test_its_marks_are_right_and_warnings_cost_nothing(course):
    with Gradebook(f"sqlite:///{course / 'gradebook.db'}") as book:
        marks = {one.student.id: (one.score, one.max_score) for one in book.assignment_submissions("small")}
    assert marks == {"loud": (2, 4), "wrong": (0, 4)}
    loud = (course / "autograded/loud/small/small.ipynb").read_text("utf-8")
    assert "2/2  每个分块" in loud
    wrong = (course / "autograded/wrong/small/small.ipynb").read_text("utf-8")
    assert "0/2  每个分块" in wrong


def test_a_course_is_not_written_over(small, tmp_path):
    from labkit_classroom.messages import Problem

    first = write(small, tmp_path, "en")
    assert [path.name for path in first] == ["small.ipynb", "nbgrader_config.py"]
    text = first[0].read_text("utf-8")
    with pytest.raises(Problem, match="exists: --force"):
        write(small, tmp_path, "en")
    assert first[0].read_text("utf-8") == text
    assert [path.name for path in write(small, tmp_path, "en", force=True)] == ["small.ipynb"]


@pytest.mark.parametrize("name", ["primitives"])
def test_every_solution_gets_all_points_from_its_cell_and_what_is_endless_is_stopped(name):
    assignment = load(name)
    cells = json.loads(source(assignment, "en", "00" * 16))["cells"]
    space: dict = {}
    exec(assignment.prologue(assignment.numbers(None)), space)
    given = 0.0
    for cell in cells:
        if cell["id"].endswith("-answer"):
            exec("".join(cell["source"]), space)
        if cell["id"].endswith("-tests"):
            source_of = "".join(cell["source"])
            assert f'seed="{"00" * 16}"' in source_of
            question = cell["metadata"]["labkit"]["question"]
            given += points(f"{name}.{question}", space, seed="00" * 16)
            assert cell["metadata"]["nbgrader"]["points"] > 0
    assert given == assignment.points


def test_an_endless_answer_is_stopped(monkeypatch, capsys):
    from labkit_classroom import in_kernel as module

    monkeypatch.setattr(module, "_CPU", 0.05)

    def split(rows, gpus):
        while True:
            try:
                while True:
                    rows += 1
            except Exception:
                pass

    assert points("primitives.split", {"split": split}, seed="00") == 0
    assert "your code was stopped" in capsys.readouterr().out


def test_an_interrupt_is_the_teachers_and_what_no_clock_can_stop_is_asked_all_the_same():
    from concurrent.futures import ThreadPoolExecutor

    from labkit_classroom.in_kernel import call_in_kernel

    def interrupted(answers):
        raise KeyboardInterrupt

    engine = call_in_kernel({"x": 3})
    with pytest.raises(KeyboardInterrupt):
        engine(interrupted, {}, None, 0)
    with ThreadPoolExecutor(1) as pool:  # no thread but the main one gets signals
        answer = pool.submit(engine, lambda answers, by: answers["x"] * by, {"by": 2}, None, 0).result()
    assert (answer.value, answer.hint) == (6, None)
    assert "ZeroDivisionError: division by zero" in engine(lambda answers: 1 / 0, {}, None, 0).hint.en
