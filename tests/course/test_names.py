"""Cells out of order: a NameError says which cell makes the name, in a lesson and nowhere else."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from traitlets.config import Config

import labkit
from labkit_cli import lab
from labkit_course import begin, check, names
from tools.author import sync
from tools.warm import python

ROOT = Path(__file__).parents[2] / "notebooks"
GOOD = {"num_gpus": 2, "batch_size": 30, "data_size": 100, "language": "en"}


@pytest.fixture
def lesson(tmp_path, monkeypatch):
    """The folder of a lesson, and the lesson begun."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("labkit_course.lesson._begun", None)

    def begun(language="en"):
        shutil.copy(ROOT / language / "04_primitives.ipynb", tmp_path)
        return begin("04_primitives", **(GOOD | {"language": language}))

    return begun


@pytest.fixture
def shell(lesson):
    # With a history it would have a thread for it, that no test ends, and a file in the user's folder.
    made = InteractiveShell.instance(config=Config(HistoryManager={"enabled": False}))
    yield made
    InteractiveShell.clear_instance()


def run(shell, source):
    """What a cell shows besides its result."""
    with capture_output() as shown:
        shell.run_cell(source)
    return shown.stdout + "".join(output.data["text/plain"] for output in shown.outputs)


def test_a_name_that_is_not_there_is_explained_by_the_cell_that_makes_it(shell, lesson):
    lesson()
    said = run(shell, "gather(3)")
    assert "`gather` is made by the cell that begins with `def gather(outputs, device):`" in said
    assert "under “Does gather undo scatter?”" in said
    assert said.index("NameError") < said.index("is made by"), "below the traceback"
    lesson("zh")
    said = run(shell, "gather(3)")
    assert (
        "`gather` 由“先分发、再收集，能还原吗？”一节里以 `def gather(outputs, device):` 开头的单元格给出"
        in said
    )
    assert said.count("单元格给出") == 1, "a lesson that begins again says it once"


@pytest.mark.parametrize(
    "source", ["nobody_makes_this", "1 / 0", "3", "def f():\n    print(x)\n    x = 1\nf()"]
)
def test_other_cells_and_other_errors_are_left_alone(shell, lesson, source):
    before = run(shell, source)
    lesson()
    assert run(shell, source) == before


def test_outside_a_lesson_there_is_no_word(shell):
    assert "is made by" not in run(shell, "gather(3)")
    assert not [f for f in shell.events.callbacks["post_run_cell"] if isinstance(f, names.NameErrorAdvice)]


def test_an_answer_that_lacks_a_name_is_told_too(lesson):
    lesson()
    verdict = check("04.call", lambda model, batch, devices: gather(scatter(batch, devices), 0))  # noqa: F821
    assert "raised NameError: name 'gather' is not defined" in verdict.text
    assert "`gather` is made by the cell" in verdict.text


@pytest.mark.parametrize("text", [None, "", "[]", '{"cells": 3}', '{"cells": [{"cell_type": "code"}]}'])
def test_a_notebook_that_cannot_be_read_costs_the_word_alone(tmp_path, monkeypatch, text):
    monkeypatch.chdir(tmp_path)
    if text is not None:
        Path("x.ipynb").write_text(text)
    error = NameError("name 'a' is not defined", name="a")
    assert names.advice_on(error, "x") == ""
    cells = [
        {"cell_type": "code", "source": ["a = ("]},
        {"cell_type": "code", "source": ["%matplotlib inline\n", "import os as a"]},
        {"cell_type": "code", "source": ["%%ranks 2\n", "import sys as a"]},
    ]
    Path("x.ipynb").write_text(json.dumps({"cells": cells}))
    assert "begins with `import os as a`" in names.advice_on(error, "x"), "unfinished code is passed over"
    in_ranks = names.advice_on(error, "x", has={"a"})
    assert "`%%ranks` cell that begins with `import sys as a`" in in_ranks, (
        "the notebook has it, the ranks do not"
    )
    assert names.advice_on(error, "x", has={"b"}) == names.advice_on(error, "x")
    labkit.set_language("zh")
    assert "开头的单元格给出" in names.advice_on(error, "x")


@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_question_alone_runs_after_a_restart_and_other_names_are_explained(tmp_path, language):
    """As a kernel that has been started again in the middle of a lesson: in a process of its own."""
    shutil.copy(ROOT / language / "04_primitives.ipynb", tmp_path)
    cells = json.loads((ROOT / language / "04_primitives.ipynb").read_text("utf-8"))["cells"]
    source = {cell["id"]: "".join(cell["source"]) for cell in cells}
    code = f"""
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
for source in {[source["bytes-predict"], source["own-predict"], source["pieces"]]!r}:
    shell.run_cell(source)
"""
    done = subprocess.run(
        [*python(), "-c", code], cwd=tmp_path, capture_output=True, text=True, encoding="utf-8",
        env=os.environ | {"JPY_SESSION_NAME": f"course/{language}/04_primitives.ipynb", "PYTHONIOENCODING": "utf-8"},
    )  # fmt: skip
    said = {"en": "What makes up most of the bytes", "zh": "搬来搬去的字节大部分是什么"}[language]
    made = {"en": "is made by the cell that begins with", "zh": "开头的单元格给出"}[language]
    assert said in done.stdout, done.stderr
    assert "`batch_size` " in done.stdout
    assert done.stdout.count(made) == 2, "each name that is missing: batch_size, and scatter"


def test_a_kernel_of_labkit_lab_says_from_its_start_which_cell_to_run_first(tmp_path):
    """An exercise, an explorer and a repair, each run alone, of a lesson that has not begun."""
    kernel = (
        lab._settings(tmp_path / "settings", "en") and tmp_path / "settings/data/kernels/python3/kernel.json"
    )
    startup = json.loads(kernel.read_text("utf-8"))["env"]["PYTHONSTARTUP"]
    for lesson, cell, name in (
        ("00_start", "add", "check"), ("00_start", "explore", "labkit"), ("09_broken", "tagger", "repair"),
    ):  # fmt: skip
        shutil.copy(ROOT / "en" / f"{lesson}.ipynb", tmp_path)
        source = next(one.source for one in sync.read(ROOT, "en", lesson).cells if one.id == cell)
        code = f"""
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
shell.safe_execfile({startup!r}, shell.user_ns)
shell.run_cell({source!r})
"""
        done = subprocess.run(
            [*python(), "-c", code], cwd=tmp_path, capture_output=True, text=True, encoding="utf-8",
            env=os.environ | {"JPY_SESSION_NAME": f"course/en/{lesson}.ipynb", "PYTHONIOENCODING": "utf-8"},
        )  # fmt: skip
        assert f"`{name}` is made by the cell that begins with `import" in done.stdout, done.stderr


def test_what_is_no_lesson_is_left_alone_after_a_restart(shell, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("JPY_SESSION_NAME", "/home/somebody/analysis.ipynb")
    names.watch_before_begin()
    assert not [f for f in shell.events.callbacks["post_run_cell"] if isinstance(f, names.NameErrorAdvice)]
