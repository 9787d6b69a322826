"""The tool that changes labkit by chance: what it changes, that lines keep their numbers, which tests it asks first."""

import os
import subprocess
import tomllib
from itertools import islice
from pathlib import Path

import pytest

from tools import mutate

ROOT = Path(__file__).parent.parent
SOURCE = '''
def first(rows, gpus=2, *, dim: int = 0):
    """The docstring stays."""
    if rows < 1 and not gpus:
        raise ValueError(f"{rows - 1} rows")
    whole = min(
        rows,
        gpus,
    )
    return whole + 1
'''


@pytest.fixture
def changes():
    visitor = mutate.Sites("labkit/plans/first.py", SOURCE)
    visitor.visit(mutate.ast.parse(SOURCE))
    return [change for found in visitor.found.values() for change in found]


@pytest.mark.parametrize(("was", "becomes"), [
    ("rows < 1", "(rows <= 1)"), ("rows < 1", "(rows >= 1)"),
    ("rows < 1 and not gpus", "(rows < 1 or not gpus)"),
    ("rows < 1 and not gpus", "(not (rows < 1 and (not gpus)))"), ("not gpus", "(gpus)"),
    ('raise ValueError(f"{rows - 1} rows")', "pass"), ("return whole + 1", "return None"),
    ("whole + 1", "(whole - 1)"), ("2", "(3)"),
    ("min(\n        rows,\n        gpus,\n    )", "(min(gpus, rows)\n\n\n)"),
])  # fmt: skip
def test_a_change(changes, was, becomes):
    (change,) = [change for change in changes if (change.was, change.becomes) == (was, becomes)]
    after = change.apply(SOURCE)
    assert mutate.compiled(after) not in (None, mutate.compiled(SOURCE))
    assert after.count("\n") == SOURCE.count("\n")
    assert change.inside == "first"


def test_texts_and_annotations_stay(changes):
    assert not [
        change for change in changes if "docstring" in change.was or change.was in ("int", "rows - 1")
    ]


def test_a_draw_is_the_same_for_the_same_seed():
    first, again, other = (list(islice(mutate.drawn(ROOT, seed, "labkit/plans"), 5)) for seed in (1, 1, 2))
    assert first == again != other


def test_the_tests_that_name_a_place_are_asked_first():
    change = next(mutate.drawn(ROOT, 1, "labkit/plans/split.py"))
    assert "tests/test_plan.py" in mutate.near(ROOT, change)[:2]


def test_what_the_table_names_is_there():
    table = tomllib.loads((ROOT / "tools/mutate.toml").read_text("utf-8"))
    named = [*table["tests"], *(path for paths in table["tests"].values() for path in paths)]
    assert [path for path in named if not (ROOT / path).exists()] == []
    assert all(row["because"] for row in table.get("equivalent", []))
    rooms = {f"labkit/{path.name}" for path in (ROOT / "labkit").iterdir() if (path / "__init__.py").exists()}
    assert rooms <= set(table["tests"])


def test_of_a_run_without_end_the_test_is_known_in_which_it_stood():
    said = "collected 3 items\n\ntests/a.py::test_one PASSED   [ 33%]\ntests/a.py::test_two[a b] SKIPPED (no) [ 66%]\n"
    assert mutate.running(said) == "tests/a.py::test_two[a b]"  # in what it puts away
    assert mutate.running(said + "tests/a.py::test_three[1-2] ") == "tests/a.py::test_three[1-2]"
    assert mutate.running(said + "\n===== 1 passed, 1 skipped in 0.02s =====\n") == ""
    assert mutate.running("") == ""


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="no /proc")
def test_a_run_that_says_nothing_is_ended_with_all_that_it_started(tmp_path, monkeypatch):
    monkeypatch.setattr(mutate, "TEST", 0.05)
    heard, told = os.pipe()
    script = "setsid sh -c 'echo; sleep 600' & sleep 600"
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    child = subprocess.Popen(["sh", "-c", script], env=environment, stdout=told, start_new_session=True)
    os.close(told)
    assert os.read(heard, 1) == b"\n"  # it has started what is in a group of its own
    (tmp_path / "log").touch()
    assert mutate._waited(child, tmp_path / "log", 600) is None
    mutate._end(child, str(tmp_path))
    assert os.read(heard, 1) == b""  # nobody is left who could write
    os.close(heard)
    monkeypatch.setattr(mutate, "TEST", 60)
    done = subprocess.Popen(["sh", "-c", "exit 3"])
    assert mutate._waited(done, tmp_path / "log", 600) == 3
