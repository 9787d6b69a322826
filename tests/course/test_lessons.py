"""A learner's copy of the course: laid out without outputs, renewed by a newer labkit, and never written over."""

import errno
import json
from datetime import date

import nbformat
import pytest

from labkit.base import files
from labkit_cli import main
from labkit_course.notebooks import copies as lessons
from labkit_course.notebooks.copies import lay_out, source


def notebook(*sources, outputs=(), language="en"):
    """A lesson as its authors keep it: with outputs."""
    title = {"cell_type": "markdown", "id": "title", "metadata": {}, "source": f"# 01 · {language}\n\nText."}
    code = [
        {"cell_type": "code", "id": f"cell-{k}", "metadata": {}, "source": text, "execution_count": k,
         "outputs": list(outputs)}
        for k, text in enumerate(sources)
    ]  # fmt: skip
    return {"cells": [title, *code], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}


SAID = {"output_type": "stream", "name": "stdout", "text": "the answer"}
TABLE = {"output_type": "execute_result", "data": {"text/markdown": ["| a |\n", "| - |"]}, "metadata": {}}


@pytest.fixture
def course(tmp_path, monkeypatch):
    """A course of one lesson and an index; gives what makes another edition of it."""
    root = tmp_path / "authors"
    monkeypatch.setattr(lessons, "source", lambda: root)

    def edition(text, **more):
        for language in ("en", "zh"):
            (root / language).mkdir(parents=True, exist_ok=True)
            for name, outputs in (("01_first", [SAID]), ("index", [TABLE]), *((n, [SAID]) for n in more)):
                content = notebook(text, "more", outputs=outputs, language=language)
                content["cells"] += notebook(f"Progress()  # {text}")["cells"][1:]
                (root / language / f"{name}.ipynb").write_text(json.dumps(content), "utf-8")

    edition("x = 1")
    return edition


@pytest.fixture
def folder(tmp_path, course):
    lay_out(tmp_path / "mine")
    return tmp_path / "mine"


def read(folder, name="en/01_first"):
    return json.loads((folder / f"{name}.ipynb").read_text("utf-8"))


def write(folder, content, name="en/01_first"):
    (folder / f"{name}.ipynb").write_text(json.dumps(content), "utf-8")


def changed(folder, name="en/01_first", text="x = 1000"):
    content = read(folder, name)
    content["cells"][1]["source"] = text
    write(folder, content, name)


def ran(folder, name="en/01_first"):
    content = read(folder, name)
    content["cells"][1] |= {"outputs": [SAID], "execution_count": 7}
    write(folder, content, name)


def asides(folder):
    return sorted(path.name for path in folder.rglob("*.ipynb") if str(date.today()) in path.name)


def test_a_copy_of_the_course_has_all_notebooks_and_no_output(tmp_path):
    before = {path: path.read_bytes() for path in source().rglob("*.ipynb")}
    laid = lay_out(tmp_path / "a" / "b")
    assert {path: path.read_bytes() for path in source().rglob("*.ipynb")} == before
    assert len(laid.new) == len(before) >= 20
    for path in before:
        text = (tmp_path / "a" / "b" / path.parent.name / path.name).read_text("utf-8")
        nbformat.validate(nbformat.reads(text, as_version=nbformat.NO_CONVERT))
        cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
        assert cells or path.stem == "index"
        assert not any(cell["outputs"] or cell["execution_count"] for cell in cells)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_copys_index_links_to_every_lesson_before_it_is_run(tmp_path, language):
    lay_out(tmp_path)
    text = "".join(
        "".join(c["source"]) for c in read(tmp_path, f"{language}/index")["cells"] if c["cell_type"] != "code"
    )
    for name in lessons.names():
        assert name == "index" or f"]({name}.ipynb)" in text
        assert (tmp_path / language / f"{name}.ipynb").is_file()


def test_a_newer_edition_renews_what_was_not_touched_and_keeps_what_was(folder, course):
    changed(folder, "en/01_first")
    ran(folder, "zh/01_first")
    kept = {name: read(folder, name) for name in ("en/01_first", "zh/01_first")}
    course("x = 2", **{"02_more": 1})
    laid = lay_out(folder)
    assert [str(copy) for copy in laid.kept] == ["en/01_first", "zh/01_first"]
    assert [str(copy) for copy in laid.renewed] == ["en/index", "zh/index"]
    assert [str(copy) for copy in laid.new] == ["en/02_more", "zh/02_more"]
    assert {name: read(folder, name) for name in kept} == kept
    assert lay_out(folder).renewed == lay_out(folder).new == []


def test_an_untouched_lesson_is_renewed(folder, course):
    content = read(folder)  # as JupyterLab saves it when it was only looked at
    content["metadata"] |= {"language_info": {"name": "python", "version": "3.13"}}
    content["cells"][0] |= {
        "id": "another",
        "source": content["cells"][0]["source"].splitlines(keepends=True),
    }
    write(folder, content)
    course("x = 2")
    assert "en/01_first" in [str(copy) for copy in lay_out(folder).renewed]
    assert read(folder)["cells"][1]["source"] == "x = 2"


def test_the_index_is_renewed_although_it_was_run(folder, course):
    content = read(folder, "en/index")
    content["cells"][-1] |= {"outputs": [SAID], "execution_count": 7}
    write(folder, content, "en/index")
    course("x = 2")
    assert "en/index" in [str(copy) for copy in lay_out(folder).renewed]


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"cells": 3}', '{"cells": [1]}', json.dumps(notebook("mine"))]
)
def test_what_is_no_copy_of_ours_is_kept(folder, content):
    (folder / "en" / "01_first.ipynb").write_text(content, "utf-8")
    assert [str(copy) for copy in lay_out(folder).kept] == ["en/01_first"]
    assert (folder / "en" / "01_first.ipynb").read_text("utf-8") == content


def test_fresh_again_keeps_what_was_there_under_a_name_with_the_day(folder, capsys):
    day = date.today()
    for text, name in (("a", f"01_first.{day}.ipynb"), ("b", f"01_first.{day}-2.ipynb")):
        changed(folder, text=text)
        assert main(["lessons", "fresh", "01_first", "--dir", str(folder)]) == 0
        out = capsys.readouterr().out
        assert f"en/01_first is reset; your notebook is now {name}" in out
        assert "zh/01_first is unchanged" in out
        assert read(folder)["cells"][1]["source"] == "x = 1"
        assert read(folder, f"en/{name.removesuffix('.ipynb')}")["cells"][1]["source"] == text
    assert read(folder, f"en/01_first.{day}")["cells"][1]["source"] == "a"


def test_fresh_brings_what_is_gone_and_what_is_newer(folder, course, capsys):
    (folder / "en" / "01_first.ipynb").unlink()
    course("x = 2")
    assert main(["lessons", "fresh", "01_first", "--dir", str(folder)]) == 0
    out = capsys.readouterr().out
    assert "en/01_first was added" in out
    assert "zh/01_first was updated" in out
    assert [read(folder, f"{language}/01_first")["cells"][1]["source"] for language in ("en", "zh")] == [
        "x = 2"
    ] * 2


def test_a_full_disk_loses_nothing(folder, monkeypatch, capsys):
    changed(folder)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    assert main(["lessons", "fresh", "01_first", "--dir", str(folder)]) == 74
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    assert main(["lessons", "copy", str(folder / "new"), "--lang", "zh"]) == 74
    english, chinese = capsys.readouterr().err.splitlines()
    assert "01_first.ipynb: the disk is full. Your files are unchanged" in english
    assert "磁盘已满。你的东西都还在" in chinese


def test_the_list_says_what_has_become_of_each(folder, course, capsys):
    changed(folder, "en/01_first")
    (folder / "zh" / "01_first.ipynb").unlink()
    main(["lessons", "list", "--dir", str(folder)])
    state = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()[1:]}
    assert "begun" in state["en/01_first"]
    assert "not there" in state["zh/01_first"]
    assert "fresh" in state["zh/index"]
    assert state["en/01_first"].endswith("01 · en")
    course("x = 2")
    main(["lessons", "list", "--dir", str(folder), "--lang", "zh"])
    state = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()[1:]}
    assert "旧版本" in state["en/01_first"]


def test_a_newer_edition_is_told_with_the_command_that_gets_it(folder, course, capsys):
    changed(folder)
    course("x = 2")
    main(["lessons", "copy", str(folder)])
    told = capsys.readouterr().out
    assert f'labkit lessons fresh en/01_first --dir "{folder}"' in told
    command = told[told.index("lessons fresh") :].splitlines()[0].replace('"', "").split()
    assert main(command) == 0
    main(["lessons", "copy", str(folder)])
    assert "lessons fresh" not in capsys.readouterr().out


@pytest.mark.parametrize("inside", [".", "en"])
def test_the_authors_own_folder_is_refused(inside, capsys):
    assert main(["lessons", "copy", str(source() / inside)]) == 2
    assert "choose another folder" in capsys.readouterr().err


@pytest.mark.parametrize(("arguments", "code", "text"), [
    (["fresh", "77"], 2, "no such lesson: '77'; the lessons are 01_first, index"),
    (["fresh", "fr/01_first"], 2, "no such lesson: 'fr/01_first'"), (["fresh"], 2, "required: LESSON"),
    (["copy"], 2, "one of the arguments DIR --dir is required"), ([], 2, "required: ACTION"),
])  # fmt: skip
def test_bad_usage_is_one_line(folder, capsys, arguments, code, text):
    assert main(["lessons", *arguments]) == code
    err = capsys.readouterr().err
    assert text in err
    assert err.count("\n") == 1


def test_a_copy_lives_at_home_or_where_the_variable_says(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    monkeypatch.delenv("LABKIT_LESSONS", raising=False)
    assert lessons.default_folder() == tmp_path / "labkit-lessons"
    monkeypatch.setenv("LABKIT_LESSONS", "~/elsewhere")
    assert lessons.default_folder() == tmp_path / "elsewhere"


def test_a_lesson_that_is_new_in_a_copy_is_named(folder, capsys):
    lay_out(folder)
    (folder / "zh" / "01_first.ipynb").unlink()
    capsys.readouterr()
    assert main(["lessons", "copy", str(folder), "--lang", "en"]) == 0
    said = capsys.readouterr().out
    assert "zh/01_first" in said
    assert "en/01_first" not in said


def test_without_a_home_a_folder_is_asked_for(folder, monkeypatch, capsys):
    def nowhere():
        raise RuntimeError

    monkeypatch.setattr(lessons, "default_folder", nowhere)
    assert main(["lessons", "list", "--lang", "en"]) == 2
    assert capsys.readouterr().err == "labkit: the home folder is unknown: name a folder with --dir\n"
    assert main(["lessons", "copy", str(folder), "--lang", "en"]) == 0
    assert f'labkit lab --dir "{folder}"' in capsys.readouterr().out
