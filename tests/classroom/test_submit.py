"""``labkit submit``: one file, what is in it, and what is not answered yet."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from labkit.base.language import using
from labkit_classroom.grade import submission
from labkit_classroom.handout.folder import release
from labkit_classroom.handout.roster import Student
from labkit_classroom.intake.answers import Claim
from labkit_classroom.intake.collecting import collect, take_in
from labkit_classroom.sandbox.isolation import CannotStart
from labkit_cli import main
from labkit_cli import submit as command

ROSTER = [Student("20231001", "张三"), Student("ada", "Ada Lovelace", "en")]
ANSWER = "def split(rows, gpus):\n    return [rows]\n"


@pytest.fixture
def day(small, tmp_path, monkeypatch, capsys):
    """A class that was given out, in a student's folder, and the command."""
    made = release(small, tmp_path / "class", ROSTER, "zh").folder
    (tmp_path / "home").mkdir()
    monkeypatch.chdir(tmp_path / "home")

    def submit(*arguments):
        code = main(["submit", *map(str, arguments)])
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return made, submit


def notebook(folder, student="ada", split=ANSWER, name="small.ipynb"):
    found = json.loads((folder.handout / student / "small.ipynb").read_text("utf-8"))
    for cell in found["cells"]:
        if cell["id"] == "split-answer" and split is not None:
            cell["source"] = split
            cell["outputs"] = [{"output_type": "stream", "name": "stdout", "text": "/home/ada/private"}]
            cell["attachments"] = {"x.png": {}}
    found["metadata"]["widgets"] = {"x": "big"}
    with open(name, "w", encoding="utf-8") as stream:
        json.dump(found, stream)
    return name


def test_one_file_which_says_what_is_in_it(day, tmp_path):
    folder, submit = day
    code, out, err = submit(notebook(folder))
    assert (code, err) == (0, "")
    assert "edition of ada" in out
    assert "split          answered, 2 lines" in out
    assert "scatter        NOT ANSWERED" in out
    assert "small-ada.ipynb (" in out
    text = (tmp_path / "home" / "small-ada.ipynb").read_text("utf-8")
    assert "private" not in text
    assert "widgets" not in text
    assert json.loads(text)["metadata"]["labkit"]["submitted"][10] == "T"
    assert submit("small-ada.ipynb")[0] == 0  # what was made can be made again


def test_what_it_makes_is_what_is_graded(day, small):
    folder, submit = day
    submit(notebook(folder), "--to", folder.submitted)
    came, answers = take_in(folder, small)
    assert came.submissions["ada"].stamped
    answers = answers["ada"]
    assert answers.answers == {"split": ANSWER.strip("\n"), "scatter": None}


def test_handing_in_again_takes_nothing_away(day, tmp_path):
    folder, submit = day
    first = notebook(folder, name="small-ada.ipynb")
    assert "small-ada-2.ipynb" in submit(first)[1]
    assert "small-ada-3.ipynb" in submit(first)[1]
    assert sorted(path.name for path in (tmp_path / "home").iterdir()) == [
        "small-ada-2.ipynb", "small-ada-3.ipynb", "small-ada.ipynb",
    ]  # fmt: skip


def test_nothing_answered_makes_nothing_unless_told(day, tmp_path):
    folder, submit = day
    name = notebook(folder, split=None)
    code, _, err = submit(name, "--lang", "zh")
    assert (code, len(list((tmp_path / "home").iterdir()))) == (1, 1)
    assert "一道题也没有答" in err
    assert submit(name, "--anyway")[0] == 0


def test_what_is_no_python_is_told_before_it_is_handed_in(day):
    folder, submit = day
    code, out, _ = submit(notebook(folder, split="def split(rows, gpus)：\n    return"))
    assert code == 0
    assert "not valid Python: invalid character '：' (U+FF1A): def split(rows, gpus)：" in out


def test_what_python_cannot_even_read_is_told(day):
    folder, submit = day
    code, out, _ = submit(notebook(folder, split="x = '\0'"))
    assert code == 0
    assert "not valid Python: source code string cannot contain null bytes" in out


def test_a_folder_that_cannot_be_written_is_one_line(day, tmp_path):
    folder, submit = day
    (tmp_path / "file").write_text("")
    code, _, err = submit(notebook(folder), "--to", tmp_path / "file")
    assert code == 2
    assert err.startswith(f"labkit: {tmp_path / 'file'}: ")


def test_doubled_cells_and_lost_metadata_are_told(day):
    folder, submit = day
    name = notebook(folder)
    found = json.loads(Path(name).read_text("utf-8"))
    copy = next(cell for cell in found["cells"] if cell["id"] == "split-answer")
    found["cells"].append(dict(copy, source="def split(rows, gpus):\n    return 3"))
    Path(name).write_text(json.dumps(found), "utf-8")
    assert "! split: 2 cells belong to it" in submit(name)[1]
    found["metadata"] = {}
    Path(name).write_text(json.dumps(found), "utf-8")
    code, out, _ = submit(name)
    assert code == 0
    assert "lost its metadata" in out


def test_a_notebook_that_has_lost_whose_it_is_asks_for_the_id(day):
    made, submit = day
    notebook(made, "ada", name="mine.ipynb")
    found = json.loads(Path("mine.ipynb").read_text("utf-8"))
    found["metadata"] = {}
    for cell in found["cells"]:
        cell["source"] = [line for line in cell["source"] if "student=" not in line]
    Path("mine.ipynb").write_text(json.dumps(found), "utf-8")
    assert "add --id" in submit("mine.ipynb")[2]
    assert "got '../x'" in submit("mine.ipynb", "--id", "../x")[2]
    assert submit("mine.ipynb", "--id", "ada", "--to", made.submitted)[0] == 0
    assert list(collect(made).submissions) == ["ada"]


@pytest.mark.parametrize(("make", "words"), [
    (lambda name: None, "No such file"),
    (lambda name: Path(name).write_text("%PDF-1.4"), "not a notebook but a PDF"),
    (lambda name: Path(name).write_text('{"cells": []}'), "no cells of an assignment"),
])  # fmt: skip
def test_a_wrong_file_is_told(day, make, words):
    _, submit = day
    make("x.ipynb")
    code, out, err = submit("x.ipynb")
    assert (code, out) == (2, "")
    assert words in err


def test_another_students_edition_is_not_handed_in_as_ones_own(day):
    folder, submit = day
    name = notebook(folder)
    assert "edition of ada, not of 20231001" in submit(name, "--id", "20231001")[2]
    both = json.loads(Path(name).read_text("utf-8"))
    other = json.loads((folder.handout / "20231001" / "small.ipynb").read_text("utf-8"))
    both["cells"] += other["cells"]
    Path("both.ipynb").write_text(json.dumps(both), "utf-8")
    assert "several editions" in submit("both.ipynb")[2]


def test_it_needs_neither_torch_nor_a_notebook_server(day):
    import subprocess
    import sys

    folder, _ = day
    name = notebook(folder)
    code = (
        "import sys; from labkit_cli import main; code = main(['submit', sys.argv[1]]);"
        "sys.exit(code or sorted({'torch', 'nbformat', 'IPython'} & set(sys.modules)) or 0)"
    )
    subprocess.run([sys.executable, "-c", code, name], check=True, capture_output=True)


def test_a_notebook_that_its_outputs_make_large_is_handed_in_without_them(day, tmp_path, monkeypatch):
    monkeypatch.setattr("labkit_classroom.intake.document.MOST_BYTES", 100_000)
    folder, submit = day
    name = notebook(folder)
    found = json.loads(Path(name).read_text("utf-8"))
    found["metadata"]["widgets"] = "x" * 200_000
    Path(name).write_text(json.dumps(found), "utf-8")
    assert submit(name)[0] == 0
    assert Path("small-ada.ipynb").stat().st_size < 20_000


def test_a_roster_with_titles_of_its_own(small, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("roster.csv").write_text("Kennziffer,Name,lang\n7,Ada,fr\n", "utf-8")
    release = ["assignment", "release", str(small.folder), "--students", "roster.csv", "--lang", "en"]
    assert main(release) == 2
    assert "--columns id=TITLE" in capsys.readouterr().err
    assert main([*release, "--columns", "id"]) == 2
    assert "--columns is written id=TITLE" in capsys.readouterr().err
    assert main([*release, "--columns", "id=Kennziffer"]) == 0
    assert "line 2: the language 'fr'" in capsys.readouterr().err
    assert Path("small/handout/7/small.ipynb").exists()


@pytest.mark.parametrize(
    "error", [ImportError("No module named 'torch'"), CannotStart("no room for a sandbox")]
)
def test_what_cannot_be_tried_here_is_handed_in_all_the_same(monkeypatch, capsys, error):
    def fails(*given):
        raise error

    monkeypatch.setattr(submission, "grade_alone", fails)
    found = SimpleNamespace(claim=Claim("primitives", "1", ""), document=None)
    with using("en"):
        assert command._try_answers(found) == {}
    assert str(error) in capsys.readouterr().err
    found.claim = Claim("small", "1", "")  # a teacher's own, whose judges the student does not have
    assert command._try_answers(found) == {}
    assert capsys.readouterr().err == ""
