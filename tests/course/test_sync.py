"""The tools that keep the two languages one course: what they write, and what they refuse."""

import json

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from labkit.course.notebooks.execute import without_volatile
from tools.author import bilingual, sync

TEXT = """%% title
# A question?

The batch has rows.
%% zh
# 一个问题？

批次有很多行。

%% parameters code parameters
num_gpus = 2
language = "en"

%% sum code keep-me
1 + 1
"""


@pytest.fixture
def root(tmp_path):
    bilingual.write(tmp_path, "00_tiny", TEXT)
    return tmp_path


def sources(root, language):
    return {cell.id: cell.source for cell in sync.read(root, language, "00_tiny").cells}


def change(root, language, cell_id, source):
    notebook = sync.read(root, language, "00_tiny")
    next(cell for cell in notebook.cells if cell.id == cell_id).source = source
    nbformat.write(notebook, root / language / "00_tiny.ipynb")


def record(root):
    (root / "pairs.json").write_text(json.dumps({"00_tiny": sync.pairs(root, "00_tiny")}))


def test_a_text_becomes_two_notebooks_and_the_notebooks_the_text(root):
    assert bilingual.to_text(root, "00_tiny") == TEXT
    assert sources(root, "en")["parameters"].endswith('language = "en"')
    assert sources(root, "zh")["parameters"].endswith('language = "zh"')
    assert sources(root, "zh")["title"] == "# 一个问题？\n\n批次有很多行。"
    assert sync.drift(root, "00_tiny") == []


def test_a_cell_may_begin_with_a_magic(tmp_path):
    text = "%% file code\n%%writefile task.py\nrows = 30\n"
    bilingual.write(tmp_path, "00_tiny", text)
    assert sources(tmp_path, "zh")["file"] == "%%writefile task.py\nrows = 30"
    assert bilingual.to_text(tmp_path, "00_tiny") == text


def test_writing_keeps_the_outputs_of_code_that_did_not_change(root):
    notebook = sync.read(root, "en", "00_tiny")
    notebook.cells[2].outputs = [nbformat.v4.new_output("stream", text="2\n")]
    nbformat.write(notebook, root / "en" / "00_tiny.ipynb")
    bilingual.write(root, "00_tiny", TEXT.replace("rows.", "many rows."))
    assert sync.read(root, "en", "00_tiny").cells[2].outputs
    bilingual.write(root, "00_tiny", TEXT.replace("1 + 1", "1 + 2"))
    assert not sync.read(root, "en", "00_tiny").cells[2].outputs


def test_writing_keeps_that_a_cells_code_is_folded(root):
    notebook = sync.read(root, "zh", "00_tiny")
    notebook.cells[2].metadata["jupyter"] = {"source_hidden": True}
    nbformat.write(notebook, root / "zh" / "00_tiny.ipynb")
    bilingual.write(root, "00_tiny", TEXT.replace("1 + 1", "1 + 2"))
    assert sync.read(root, "zh", "00_tiny").cells[2].metadata["jupyter"] == {"source_hidden": True}


def test_the_setup_of_a_new_lesson_is_folded_and_nothing_else(tmp_path):
    bilingual.write(tmp_path, "00_tiny", TEXT + "\n%% setup code setup\n1\n")
    folded = [cell.id for cell in sync.read(tmp_path, "zh", "00_tiny").cells if "jupyter" in cell.metadata]
    assert folded == ["setup"]


@pytest.mark.parametrize(("text", "error"), [
    ("hello\n", "line 1: text before the first cell"), ("%% a\nEnglish\n", "cell a: no Chinese"),
    ("%% a code\n1\n%% a code\n2\n", "line 3: there are two cells 'a'"),
    ("%% a code\n1\n%% zh\n2\n", "line 3: '%% zh' stands once"),
    ("%% A b c d\n", "line 1: not a cell's first line"),
])  # fmt: skip
def test_a_text_of_another_form_is_refused_by_line_and_nothing_is_written(tmp_path, text, error, capsys):
    file = tmp_path / "lesson.txt"
    file.write_text(text)
    assert bilingual.main(["--write", "00_x", str(file), "--root", str(tmp_path)]) == 2
    assert error in capsys.readouterr().err
    assert not (tmp_path / "en").exists()


@pytest.mark.parametrize("arguments", [["00_x", "lesson.txt"], ["--write", "00_x"]])
def test_to_write_and_a_file_go_together(arguments, capsys):
    with pytest.raises(SystemExit) as stop:
        bilingual.main(arguments)
    assert stop.value.code == 2
    assert "--write and a file go together" in capsys.readouterr().err


def test_text_that_changed_in_one_language_only_is_refused_and_named(root):
    record(root)
    change(root, "en", "title", "# Another question?")
    before = (root / "pairs.json").read_text()
    with pytest.raises(SystemExit, match="one language only: title"):
        sync.synchronise(root, "00_tiny")
    assert (root / "pairs.json").read_text() == before
    assert sync.main(["--check", "--root", str(root)]) == 1
    change(root, "zh", "title", "# 另一个问题？")
    assert sync.drift(root, "00_tiny") == []


def test_check_names_every_drift_and_writes_nothing(root, capsys):
    record(root)
    change(root, "zh", "sum", "1 + 2")
    change(root, "en", "title", "# Are GPUs idle?")
    before = {path: path.read_bytes() for path in root.rglob("*.*")}
    assert sync.main(["--check", "--root", str(root)]) == 1
    out = capsys.readouterr().out
    assert "00_tiny, cell sum: the code differs" in out
    assert "00_tiny, cell title: the text changed in one language only" in out
    assert {path: path.read_bytes() for path in root.rglob("*.*")} == before


def test_terms_are_checked(root):
    change(root, "en", "title", "# Are GPUs idle?")
    assert sync.terms(root, "00_tiny") == [
        "00_tiny, cell title: 'idle' is in the English, '空闲' not in the Chinese"
    ]


def test_cells_that_differ_are_named_before_anything_runs(root):
    notebook = sync.read(root, "zh", "00_tiny")
    notebook.cells.append(new_markdown_cell("多余", id="extra"))
    nbformat.write(notebook, root / "zh" / "00_tiny.ipynb")
    with pytest.raises(SystemExit, match="the cells differ: extra"):
        sync.synchronise(root, "00_tiny")


def test_english_code_is_copied_with_its_tags_run_and_stored(root):
    notebook = sync.read(root, "en", "00_tiny")
    notebook.cells[2].source = "print(num_gpus, language)"
    notebook.cells[2].metadata["tags"] = ["hide-input"]
    nbformat.write(notebook, root / "en" / "00_tiny.ipynb")
    (root / "pairs.json").write_text('{"index": {"title": ["a", "b"]}}')
    sync.synchronise(root, "00_tiny")
    assert sync.read(root, "zh", "00_tiny").cells[2].metadata == {"tags": ["hide-input"]}
    stored = {lang: sync.read(root, lang, "00_tiny").cells[2].outputs[0].text for lang in sync.LANGUAGES}
    assert stored == {"en": "2 en\n", "zh": "2 zh\n"}
    assert sync.recorded(root) == {
        "00_tiny": sync.pairs(root, "00_tiny"),
        "index": {"title": ["a", "b"]},
    }


def test_where_a_kernel_cuts_the_printed_text_is_not_stored():
    stream = [("stdout", "a\n"), ("stdout", "b\n"), ("stderr", "c\n"), ("stdout", "d\n"), ("stdout", "e\n")]
    outputs = [new_output("stream", name=name, text=text) for name, text in stream]
    shown = [new_output("display_data", data={"text/plain": text}) for text in "xy"]
    cell = new_code_cell("show()", outputs=[*outputs[:2], *shown, *outputs[2:]])
    without_volatile(new_notebook(cells=[new_markdown_cell("text"), cell]))
    assert [output.get("text", output.get("data")) for output in cell.outputs] == [
        "a\nb\n", {"text/plain": "x"}, {"text/plain": "y"}, "c\n", "d\ne\n",
    ]  # fmt: skip


def test_nothing_is_written_when_a_language_fails(root):
    change(root, "en", "sum", 'assert language == "en"')
    before = {path: path.read_bytes() for path in root.rglob("*.*")}
    with pytest.raises(SystemExit, match=r"00_tiny \(zh\) failed, nothing was written"):
        sync.synchronise(root, "00_tiny")
    assert {path: path.read_bytes() for path in root.rglob("*.*")} == before


def test_unknown_names_are_one_line_and_code_two(root, capsys):
    assert sync.main(["99_none", "--root", str(root)]) == 2
    assert capsys.readouterr().err == "no such notebook here: 99_none; there are 00_tiny\n"


def test_lessons_begin_with_a_number(root):
    for language in sync.LANGUAGES:
        nbformat.write(new_notebook(cells=[new_code_cell("1")]), root / language / "index.ipynb")
    assert sync.lessons(root) == ["00_tiny"]
    assert sync.notebooks(root) == ["00_tiny", "index"]
