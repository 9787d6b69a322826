"""Answers are found by our own ids, whatever a tool or a student has done to the notebook."""

import json

import pytest

from labkit.base.language import using
from labkit_classroom.assignment import EditionCell, notebook
from labkit_classroom.intake.answers import Claim, claims_of, read_answers
from labkit_classroom.intake.document import WrongFile, read_document
from labkit_classroom.source import QuestionFacts

SPLIT = QuestionFacts("split", ("split",), "def split(rows, gpus):\n    ...")
SCATTER = QuestionFacts("scatter", ("scatter",), "def scatter(x, n):\n    ...")
QUESTIONS = (SPLIT, SCATTER)
CELLS = [
    EditionCell("intro", "text", "# A small assignment"), EditionCell("given", "given", "import torch\nbase = 3"),
    EditionCell("split-text", "text", "## Split", "split"), EditionCell("split", "answer", SPLIT.stub, "split"),
    EditionCell("split-check", "check", "check('small.split')", "split"),
    EditionCell("scatter", "answer", SCATTER.stub, "scatter"),
    EditionCell("scatter-check", "check", "check('small.scatter')", "scatter"),
]  # fmt: skip
RIGHT = "def split(rows, gpus):\n    return -(-rows // gpus)"
OTHER = "def scatter(x, n):\n    return x.chunk(n)"


def edition():
    return json.loads(notebook("small", CELLS, "s1", "abc"))


def at(found, id):
    return next(cell for cell in found["cells"] if cell["id"] == id)


def answered(split=RIGHT, scatter=OTHER):
    found = edition()
    for id, source in (("split-answer", split), ("scatter-answer", scatter)):
        if source is not None:
            at(found, id)["source"] = [at(found, id)["source"][0], source]
    return found


def read(found, name="x.ipynb", given="import torch\nbase = 3"):
    content = found if isinstance(found, bytes) else json.dumps(found).encode()
    return read_answers(read_document(content), "small", QUESTIONS, given)


def claims(found, name="x.ipynb"):
    return claims_of(read_document(found if isinstance(found, bytes) else json.dumps(found).encode()))


def kinds(result):
    return [note.kind for note in result.notes]


def test_an_edition_as_it_was_given_out_answers_nothing():
    result = read(edition())
    assert result.answers == {"split": None, "scatter": None}
    assert result.notes == []
    assert claims(edition()) == [Claim("small", "s1", "abc")]


def test_answers_are_found_and_told_from_what_is_not_answered():
    result = read(answered(scatter=None))
    assert result.answers == {"split": RIGHT, "scatter": None}
    assert result.notes == []


def lose_metadata(found):  # as Colab and converters do
    found["metadata"] = {}
    for number, cell in enumerate(found["cells"]):
        cell["metadata"], cell["id"] = {}, f"r{number}"


def lose_marks(found):  # all first lines deleted
    for cell in found["cells"]:
        cell["source"] = [line for line in cell["source"] if not line.startswith("# labkit")]


def lose_metadata_and_marks(found):
    for cell in found["cells"]:
        cell["metadata"] = {}
    lose_marks(found)


def lose_everything(found):
    lose_marks(found)
    lose_metadata(found)


def one_string(found):  # sources as text, not lists: VS Code and others
    for cell in found["cells"]:
        cell["source"] = "".join(cell["source"]).replace("\n", "\r\n")


def marks_by_hand(found):  # retyped by a student on a Chinese keyboard
    for cell in found["cells"]:
        cell["source"] = [line.replace("# labkit: ", "#Labkit：") for line in cell["source"]]
        cell["metadata"] = {}


def merge(found):  # all cells into one, with JupyterLab's Shift-M
    text = "\n\n".join("".join(cell["source"]) for cell in found["cells"] if cell["cell_type"] == "code")
    found["cells"] = [dict(found["cells"][1], source=[text])]


def odd_cells(found):
    found["cells"] = [None, 3, {}, {"cell_type": "code"}, {"source": [1, None]}, *found["cells"]]
    found["cells"][1:1] = [{"cell_type": "code", "source": "\ud800 x", "metadata": [], "id": 7}]


HAPPENED = {
    "reordered": lambda found: found["cells"].reverse(),
    "doubled": lambda found: found["cells"].extend([dict(cell) for cell in found["cells"]]),
    "stubs after": lambda found: found["cells"].extend(edition()["cells"]),
} | {
    what.__name__: what
    for what in (
        lose_metadata, lose_marks, lose_metadata_and_marks, lose_everything, one_string, marks_by_hand, merge,
        odd_cells,
    )
}  # fmt: skip


@pytest.mark.parametrize("happened", HAPPENED)
def test_whatever_happens_to_the_cells_costs_nothing(happened):
    found = answered()
    HAPPENED[happened](found)
    assert read(found).answers == {"split": RIGHT, "scatter": OTHER}
    found = answered(scatter=None)  # and what is not answered stays so
    HAPPENED[happened](found)
    assert read(found).answers == {"split": RIGHT, "scatter": None}


@pytest.mark.parametrize("ids", [True, False])
def test_a_deleted_cell_is_not_answered_and_told(ids):
    found = answered()
    found["cells"] = [cell for cell in found["cells"] if cell["id"] != "split-answer"]
    result = read(found)
    assert result.answers == {"split": None, "scatter": OTHER}
    assert kinds(result) == ["deleted"]


def test_a_cell_that_was_split_in_two_is_one_answer():
    found = answered("def half(a):\n    return a")
    where = found["cells"].index(at(found, "split-answer"))
    second = dict(found["cells"][where], id="new", source=RIGHT)
    found["cells"].insert(where + 1, second)
    result = read(found)
    assert result.answers["split"] == "def half(a):\n    return a\n\n" + RIGHT
    assert kinds(result) == ["several"]


def test_of_two_versions_the_lower_one_counts_as_when_all_cells_are_run():
    found = answered("def split(rows, gpus):\n    return 0")
    found["cells"].append(dict(at(found, "split-answer"), source="# labkit: small.split\n" + RIGHT))
    space: dict = {}
    exec(read(found).answers["split"], space)
    assert space["split"](9, 4) == 3


def test_a_broken_copy_beside_a_good_one_is_left_out_and_a_broken_answer_alone_is_kept():
    found = answered()
    found["cells"].append(dict(at(found, "split-answer"), source="# labkit: small.split\ndef split(:"))
    result = read(found)
    assert (result.answers["split"], kinds(result)) == (RIGHT, ["broken-copy"])
    assert read(answered("def split(:")).answers["split"] == "def split(:"


def test_an_answer_written_into_a_new_cell_is_found_by_what_it_defines():
    found = answered(split=None)
    found["cells"].append({"cell_type": "code", "source": "import math\n" + RIGHT, "metadata": {}, "id": "z"})
    result = read(found)
    assert result.answers["split"] == "import math\n" + RIGHT
    assert kinds(result) == ["elsewhere"]


def test_the_id_alone_tells_an_answer_that_defines_something_else():
    found = answered("def my_split(rows, gpus):\n    return 1")
    lose_metadata_and_marks(found)
    result = read(found)
    assert result.answers["split"] == "def my_split(rows, gpus):\n    return 1"
    assert kinds(result) == ["undefined"]


def test_helpers_in_cells_of_their_own_come_along_and_nothing_else_does():
    found = answered("def split(rows, gpus):\n    return ceil(rows, gpus) + base")
    mine = (
        "import math as m\nbase = 99\nunused = print('x')\n"
        "@staticmethod\ndef ceil(a, b):\n    return m.ceil(a / b)\n"
    )
    found["cells"].insert(1, {"cell_type": "code", "source": mine, "metadata": {}, "id": "mine"})
    result = read(found)
    assert result.answers["split"] == (
        "import math as m\n@staticmethod\ndef ceil(a, b):\n    return m.ceil(a / b)\n\n"
        "def split(rows, gpus):\n    return ceil(rows, gpus) + base"
    )
    assert kinds(result) == ["helpers"]
    assert "ceil, m" in result.notes[0].en


@pytest.mark.parametrize(("source", "wanted"), [
    ("%%time\n" + RIGHT, "pass\n" + RIGHT),
    ("!pip install x\n" + RIGHT + "\n%timeit split(3, 2)", "pass\n" + RIGHT + "\npass"),
    (RIGHT + "\nsplit?", RIGHT + "\npass"),
])  # fmt: skip
def test_magics_do_not_make_it_something_else_than_python(source, wanted):
    result = read(answered(source))
    assert result.answers["split"] == wanted
    assert kinds(result) == ["magics"]


def test_whose_it_is_stands_in_metadata_and_in_a_cell():
    found = answered()
    assert claims_of(read_document(json.dumps(found).encode())) == [Claim("small", "s1", "abc")]
    found["metadata"]["labkit"]["student"] = "s2"
    assert [claim.student for claim in claims(found)] == ["s2", "s1"]


@pytest.mark.parametrize(("content", "words", "chinese"), [
    (b"", "an empty file", "空文件"), (b"%PDF-1.7", "a PDF", "PDF 文件"),
    (b"PK\x03\x04...", "a ZIP archive", "压缩包"), (b"<!DOCTYPE html>", "a web page", "网页"),
    (b'{"cells": [', "broken JSON", "不完整的 JSON"),
    (b'{"a": 1}', "JSON of another kind", "另一种 JSON"),
    (b'{"cells": 3}', "JSON of another kind", "另一种 JSON"), (b"[" * 100_000, "no JSON", "不是 JSON"),
    (b'{"a":' * 100_000, "broken JSON", "不完整的 JSON"),
    (b"x" * 20_000_001, "larger than 20 MB", "超过 20 MB"),
    (json.dumps({"cells": [{}] * 20_001}).encode(), "20001 cells", "20001 个单元格"),
], ids=range(11))  # fmt: skip
def test_a_wrong_file_is_told_what_it_is(content, words, chinese):
    for language, text in (("en", words), ("zh", chinese)):
        with using(language), pytest.raises(WrongFile) as caught:
            read_document(content)
        with using(language):
            assert text in str(caught.value)


def test_what_nobody_can_parse_is_no_accident():
    for source in ("(" * 5000, "-" * 50_000 + "1", "x\0y", "a" + ".b" * 50_000, "x = " + "9" * 6000):
        assert read(answered(source)).answers["split"] == source


def test_an_answer_without_end_is_cut():
    result = read(answered("x = 1\n" * 50_000))
    assert len(result.answers["split"]) == 200_000
    assert kinds(result) == ["too-long"]


def test_the_digest_is_of_the_answers():
    first = read(answered())
    with_outputs = answered()
    at(with_outputs, "split-answer")["outputs"] = [{"text": "new"}]
    with_outputs["cells"].reverse()
    assert read(with_outputs).digest == first.digest != read(answered("x = 2")).digest
