"""``labkit doctor``: what this computer has, and a sentence with the remedy for each thing that is wrong."""

import builtins
import json
import sys
from pathlib import Path

import pytest

from labkit_cli import doctor, main


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_LESSONS", str(tmp_path / "mine"))
    monkeypatch.setenv("LABKIT_PROGRESS", str(tmp_path / "progress.json"))


def report(capsys, *arguments):
    capsys.readouterr()
    code = main(["doctor", "--json", *arguments])
    found = json.loads(capsys.readouterr().out)
    assert found["ok"] is (code == 0)
    return found


@pytest.mark.parametrize(("language", "end"), [("en", "The lessons can run here."), ("zh", "课程可以运行。")])
def test_a_computer_that_has_everything_is_told_on_one_screen(capsys, language, end):
    import torch

    assert main(["doctor", "--lang", language]) == 0
    shown = capsys.readouterr().out
    assert shown.endswith(f"\n{end}\n")
    assert len(shown.splitlines()) < 24
    for fact in (sys.executable, torch.__version__, "progress.json"):
        assert fact in shown


def no_package(monkeypatch):
    monkeypatch.setattr(doctor, "find_spec", lambda name: None if name == "papermill" else True)


def no_torch(monkeypatch):
    there = builtins.__import__

    def load(name, *arguments, **more):
        if name == "torch":
            raise OSError("libtorch_cpu.so: cannot open shared object file")
        return there(name, *arguments, **more)

    monkeypatch.setattr(builtins, "__import__", load)


def old_python(monkeypatch):
    monkeypatch.setattr(sys, "version_info", (3, 10, 1, "final", 0))


def no_home(monkeypatch):
    monkeypatch.delenv("LABKIT_LESSONS")
    monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))


@pytest.mark.parametrize(("plant", "remedy"), [
    (no_package, 'papermill: pip install "labkit[lab]"'),
    (no_torch, "pip install torch"),
    (old_python, "3.11"),
    (no_home, "LABKIT_LESSONS"),
])  # fmt: skip
def test_a_trouble_is_named_with_its_remedy_and_exit_code_1(capsys, monkeypatch, plant, remedy):
    plant(monkeypatch)
    (problem,) = report(capsys)["problems"]
    assert remedy in problem
    (chinese,) = report(capsys, "--lang", "zh")["problems"]
    assert chinese != problem


def test_what_was_begun_and_answered_is_counted(capsys, tmp_path):
    main(["lessons", "copy", str(tmp_path / "mine")])
    path = tmp_path / "mine" / "en" / "03_split.ipynb"
    path.write_text(path.read_text("utf-8").replace("num_gpus = 8", "num_gpus = 3"), "utf-8")
    (tmp_path / "progress.json").write_text('{"done": ["03.idle", "03.ceil"]}', "utf-8")
    found = report(capsys)
    assert found["copy"] == f"{tmp_path / 'mine'}: 1 begun"
    assert found["progress"] == f"{tmp_path / 'progress.json'}: 2 answered"
