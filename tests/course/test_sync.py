"""The tools that keep the two languages one course: what they write, and what they refuse."""

import json
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from labkit_course.notebooks.execute import strip_volatile
from tools.author import bilingual, questions, sync

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
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
    assert sync.read_recorded_pairs(root) == {
        "00_tiny": sync.pairs(root, "00_tiny"),
        "index": {"title": ["a", "b"]},
    }


def test_where_a_kernel_cuts_the_printed_text_is_not_stored():
    stream = [("stdout", "a\n"), ("stdout", "b\n"), ("stderr", "c\n"), ("stdout", "d\n"), ("stdout", "e\n")]
    outputs = [new_output("stream", name=name, text=text) for name, text in stream]
    shown = [new_output("display_data", data={"text/plain": text}) for text in "xy"]
    cell = new_code_cell("show()", outputs=[*outputs[:2], *shown, *outputs[2:]])
    strip_volatile(new_notebook(cells=[new_markdown_cell("text"), cell]))
    assert [output.get("text", output.get("data")) for output in cell.outputs] == [
        "a\nb\n", {"text/plain": "x"}, {"text/plain": "y"}, "c\n", "d\ne\n",
    ]  # fmt: skip


def test_nothing_is_written_when_a_language_fails(root):
    change(root, "en", "sum", 'assert language == "en"')
    before = {path: path.read_bytes() for path in root.rglob("*.*")}
    with pytest.raises(SystemExit, match=r"00_tiny \(zh\) failed, nothing was written"):
        sync.synchronise(root, "00_tiny")
    assert {path: path.read_bytes() for path in root.rglob("*.*")} == before


def test_a_hint_on_the_right_answer_and_a_question_without_its_why_are_reported():
    """In lesson 17's mesh rank 5 reads the same from the inside out; rank 6 does not."""
    why = new_markdown_cell('<span class="labkit-17-coordinate">')
    numbers = new_code_cell("rank = 5", metadata={"tags": ["parameters"]})
    ask = "from labkit.course import predict\n\npredict({})"
    plain = new_code_cell(ask.format('"17.coordinate", rank=rank'))
    assert questions.problems([numbers, plain, why]) == [
        "17.coordinate(rank=5): there is a hint for [1, 0, 1], which is the right answer"
    ]
    sound = new_code_cell(ask.format('"17.coordinate", rank=6'))
    assert questions.problems([sound, why]) == []
    assert questions.problems([why, sound]) == ["17.coordinate: no folded explanation below the question"]


@pytest.mark.parametrize("lesson", [name for name in sync.lessons(NOTEBOOKS) if name >= "10"])
def test_questions_of_part_two_are_sound(lesson):
    assert questions.problems(sync.read(NOTEBOOKS, "en", lesson).cells) == []


def test_a_public_argument_that_nobody_wrote_down_is_reported(tmp_path):
    whole = (NOTEBOOKS.parent / "tests" / "signatures.txt").read_text("utf-8")
    (tmp_path / "signatures.txt").write_text(whole.replace("megabytes=25, ", ""), "utf-8")
    assert questions.missing_signatures(tmp_path / "signatures.txt") == [
        "signatures.txt: BucketExplorer lacks megabytes"
    ]
