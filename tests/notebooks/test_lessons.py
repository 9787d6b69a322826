"""The lessons: two languages that are one lesson, tidy cells, stored outputs that are still so, parameters that work.

They are run one after another in one kernel (a fork of a process that has imported torch); what does not depend on
parameters is compared with what is stored. ``make test-more`` also has nbval run the English ones, each in a kernel of
its own that imports torch itself.
"""

import importlib.util
import json
import re
import tomllib
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest
from IPython.core.inputtransformer2 import TransformerManager
from nbclient.exceptions import CellExecutionError

from labkit_course.notebooks.execute import WIDGET
from tools.author import sync

pytestmark = pytest.mark.usefixtures("warm_kernels")
ROOT = Path(__file__).parents[2] / "notebooks"
# Those of part one have numbers below 10.
LESSONS = sync.lessons(ROOT)
NOTEBOOKS = sync.notebooks(ROOT)  # the lessons and the index
PROJECT = tomllib.loads((ROOT.parent / "pyproject.toml").read_text("utf-8"))["project"]
BOTH = [(lesson, language) for lesson in LESSONS for language in sync.LANGUAGES]


def cells(language, lesson, kind=None):
    return [cell for cell in sync.read(ROOT, language, lesson).cells if kind in (None, cell.cell_type)]


def test_there_are_lessons_in_both_languages():
    assert {"00_start", "01_dataset", "02_wrap", "03_split", "04_primitives", "05_devices"} < set(LESSONS)
    assert {"06_batch_dim", "07_training", "08_memory", "09_broken"} < set(LESSONS)
    assert sorted(path.stem for path in (ROOT / "zh").glob("*.ipynb")) == NOTEBOOKS == [*LESSONS, "index"]


@pytest.mark.parametrize("lesson", NOTEBOOKS)
def test_the_code_is_the_same_in_both_languages(lesson):
    assert sync.differences(ROOT, lesson) == []


@pytest.mark.parametrize("lesson", NOTEBOOKS)
def test_no_text_changed_in_one_language_only(lesson):
    recorded = json.loads((ROOT / "pairs.json").read_text("utf-8"))
    assert sync.one_sided(recorded[lesson], sync.pairs(ROOT, lesson)) == []
    assert recorded[lesson].keys() == sync.pairs(ROOT, lesson).keys(), "run python -m tools.author.sync"


@pytest.mark.parametrize(("lesson", "language"), BOTH)
def test_cells_are_small_and_tidy(lesson, language):
    found = cells(language, lesson)
    asks = re.compile(r"predict\(|check\(|find_spec")
    assert 15 <= sum(not asks.search(cell.source) or cell.id == "begin" for cell in found) <= 34
    first_code = next(cell for cell in found if cell.cell_type == "code")
    assert first_code.metadata.get("tags") == ["parameters"]
    assert first_code.source.endswith(f'language = "{language}"')
    for cell in found:
        if cell.cell_type == "code":
            # What lessons 09 and 19 give to repair is as long as what people write; imports are no idea to read.
            repaired = lesson in ("09_broken", "19_hung") and cell.id.endswith("-class")
            most = 25 if repaired or cell.id == "begin" else 10
            assert len(cell.source.splitlines()) <= most, cell.id
            assert "import *" not in cell.source, cell.id
            assert "%run" not in cell.source, cell.id
            assert cell.source.isascii(), f"{cell.id}: code holds no natural language"
            assert all(WIDGET not in output.get("data", {}) for output in cell.outputs), cell.id
            assert all(output.output_type != "error" for output in cell.outputs), cell.id
            assert cell.execution_count, f"{cell.id} was not run: python -m tools.author.sync"


@pytest.mark.parametrize(("lesson", "language"), BOTH)
def test_a_cell_that_only_asks_hides_its_source(lesson, language):
    asks = [cell for cell in cells(language, lesson, "code") if "import predict\n" in cell.source]
    assert asks
    assert all(cell.metadata["jupyter"] == {"source_hidden": True} for cell in asks)


@pytest.mark.parametrize("lesson", NOTEBOOKS)
def test_a_machine_without_labkit_gets_it_and_keeps_its_own_packages(lesson, monkeypatch):
    """Colab has its own torch and ipywidgets, which must stay. The cell is closed in JupyterLab."""
    code = cells("en", lesson, "code")
    setup = next(cell for cell in code if cell.id == "setup")
    assert setup.metadata["jupyter"] == {"source_hidden": True}
    before = code[: code.index(setup)]
    assert not any("labkit" in cell.source for cell in before)
    assert all(cell.source == setup.source for cell in cells("zh", lesson, "code") if cell.id == "setup")

    asked = []
    shell = SimpleNamespace(run_line_magic=lambda name, words: asked.append((name, words)))
    python = TransformerManager().transform_cell(setup.source)
    exec(python, {"get_ipython": lambda: shell})
    assert asked == []
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "labkit" else find(name))
    exec(python, {"get_ipython": lambda: shell})
    ((magic, words),) = asked
    assert magic == "pip"
    assert "--no-deps" in words
    assert words.endswith("git+" + PROJECT["urls"]["Repository"])


@pytest.mark.parametrize(("lesson", "language"), BOTH)
def test_links_between_lessons_lead_somewhere(lesson, language):
    for cell in cells(language, lesson, "markdown"):
        for target in [part.split(")")[0] for part in cell.source.split("](")[1:]]:
            assert (ROOT / language / target).exists(), f"{cell.id}: {target}"


# The tutorial's transcripts (30, 30, 30 and 10 rows of 5 features on 2, 3 and 8 GPUs), in device order.
PIECES = {2: ([15, 15], [5, 5]), 3: ([10] * 3, [4, 4, 2]), 8: ([4] * 7 + [2], [2] * 5)}


def transcript(gpus, batches):
    """What the program prints of its last ``batches`` batches."""
    full, last = PIECES[gpus]
    lines = [f"Let's use {gpus} GPUs!"]
    for pieces, rows in [(full, 30)] * (batches - 1) + [(last, 10)]:
        lines += [
            f"\tIn Model: input size torch.Size([{n}, 5]) output size torch.Size([{n}, 2])" for n in pieces
        ]
        lines.append(f"Outside: input size torch.Size([{rows}, 5]) output_size torch.Size([{rows}, 2])")
    return "\n".join(lines) + "\n"


def printed(notebook, *ids):
    wanted = [cell for cell in notebook.cells if cell.get("id") in ids]
    return "".join(o.text for cell in wanted for o in cell.outputs if o.output_type == "stream")


@pytest.mark.parametrize("language", sync.LANGUAGES)
def test_the_stored_transcripts_are_the_tutorials(language):
    assert printed(sync.read(ROOT, language, "02_wrap"), "two") == transcript(2, 4)
    assert printed(sync.read(ROOT, language, "03_split"), "wrap", "transcript") == transcript(8, 2)


def drawn(notebook, cell):
    """What a cell's last line shows to those who see no picture."""
    found = next(known for known in notebook.cells if known.get("id") == cell)
    return found.outputs[-1].data["text/plain"]


@pytest.mark.parametrize("language", ["en", pytest.param("zh", marks=pytest.mark.more)])
@pytest.mark.parametrize("lesson", NOTEBOOKS)
def test_a_lesson_gives_what_is_stored(lesson, language, run):
    """The code is the same in both languages, what it shows in words is not."""
    stored = sync.read(ROOT, language, lesson)
    now = run(sync.read(ROOT, language, lesson), ROOT / language)
    for one, other in zip(stored.cells, now.cells, strict=True):
        if "nbval-ignore-output" not in one.metadata.get("tags", ()):  # draws, and pictures of rounding
            assert shown(other) == shown(one), f"cell {one.id}"


def with_parameters(lesson, language, **parameters):
    """The notebook as papermill hands it to a kernel."""
    from papermill.iorw import load_notebook_node
    from papermill.parameterize import parameterize_notebook

    notebook = load_notebook_node(str(ROOT / language / f"{lesson}.ipynb"))
    return parameterize_notebook(notebook, parameters | {"language": language})


def shown(cell):
    """What a reader sees below a cell, but for pictures made of dots: fonts differ between computers.

    Without the digits of rounding, which depend on the processor's vector units. Of a hint on a function that is
    still to be repaired, that it is one: each try draws its own numbers.
    """
    hints = [output for output in cell.get("outputs", []) if is_hint(output)]
    return ["a hint"] * len(hints) + [
        {
            # The number of a cell, and the size of letters that make room for it, depend on what ran before.
            kind: re.sub(
                r'(font-size="[\d.]+"(?=[^<>]*>[^<]*Cell In)|(?<=Cell In)\[\d+\]|(?<=\d\.\d{4})\d{3,})',
                "…",
                str(text),
            )
            for kind, text in output.get("data", {"text": output.get("text")}).items()
            if kind != "image/png"
        }
        for output in cell.get("outputs", [])
        if output not in hints
    ]


def is_hint(output):
    return output.get("data", {}).get("text/plain", "").startswith("✗")


@pytest.mark.parametrize(
    ("gpus", "batch", "language"), [(5, 3, "en"), (64, 30, "en"), (1, 30, "zh"), (0, 30, "en")]
)
def test_the_split_is_that_of_the_parameters(gpus, batch, language, run):
    made = run(with_parameters("03_split", language, num_gpus=gpus, batch_size=batch), ROOT / language)
    text = printed(made, "wrap", "transcript")
    assert text.count("Outside") == 2
    if gpus == 64:
        assert text.count("In Model: input size torch.Size([1, 5])") == 40, (
            "the last two batches: 30 rows and 10"
        )


@pytest.mark.more
def test_papermill_runs_a_lesson_with_other_parameters(tmp_path):
    import papermill

    out = tmp_path / "out.ipynb"
    parameters = {"num_gpus": 3, "language": "zh"}
    papermill.execute_notebook(
        ROOT / "zh" / "03_split.ipynb", out, parameters, progress_bar=False, start_timeout=120
    )
    assert printed(nbformat.read(out, as_version=4), "wrap", "transcript") == transcript(3, 2)


# Of each part some that are quick; the others are run again by `make test-more`. (None has a GPU in the test above.)
SOME = [
    ("02_wrap", "zh", {"num_gpus": 5, "batch_size": 3, "data_size": 7}),
    ("04_primitives", "zh", {"num_gpus": 8, "batch_size": 9}),
    ("12_ddp", "zh", {"num_ranks": 3}),
]
OTHERS = [
    ("00_start", "zh", {"num_gpus": 0}),
    ("01_dataset", "en", {"num_gpus": 1, "batch_size": 3, "data_size": 1}),
    ("04_primitives", "en", {"num_gpus": 0}), ("05_devices", "en", {"num_gpus": 5}),
    ("05_devices", "zh", {"num_gpus": 0}),
    ("06_batch_dim", "en", {"num_gpus": 8, "batch_size": 16}),
    ("06_batch_dim", "zh", {"num_gpus": 0, "batch_size": 3}), ("07_training", "en", {"num_gpus": 0}),
    ("07_training", "zh", {"num_gpus": 4, "batch_size": 3}),
    ("08_memory", "zh", {"num_gpus": 0, "batch_size": 1, "data_size": 1}),
    ("09_broken", "en", {"num_gpus": 0, "batch_size": 1}),
    ("09_broken", "zh", {"num_gpus": 8, "batch_size": 3}),
    *((lesson, "zh", {"num_ranks": 3}) for lesson in LESSONS if lesson >= "10" and lesson != "12_ddp"),
    *((lesson, "en", {"num_ranks": ranks}) for lesson in LESSONS if lesson >= "10" for ranks in (1, 8)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("lesson", "language", "parameters"),
    [*SOME, *(pytest.param(*one, marks=pytest.mark.more) for one in OTHERS)],
)
def test_the_other_lessons_take_parameters_too(lesson, language, parameters, run):
    stored = sync.read(ROOT, language, lesson)
    now = run(with_parameters(lesson, language, **parameters), ROOT / language)
    # What the prose speaks of does not depend on the parameters: only these cells do, and questions.
    free = {"begin", "own", "explore", "parameters"} | {"00_start": {"look", "hung"}}.get(lesson, set())
    free |= {cell.id for cell in stored.cells if cell.id.endswith("-predict")}
    found = {cell.id: shown(cell) for cell in now.cells}
    for cell in stored.cells:
        assert cell.id in free or found[cell.id] == shown(cell), cell.id
    if lesson == "02_wrap":
        rows = "\tIn Model: input size torch.Size([1, 5]) output size torch.Size([1, 2])\n"
        full = rows * 3 + "Outside: input size torch.Size([3, 5]) output_size torch.Size([3, 2])\n"
        assert drawn(now, "own") + "\n" == "Let's use 5 GPUs!\n" + full
    if lesson == "04_primitives":
        busy = "一次调用：20 个事件，在 cpu、cuda:0、…、cuda:4 上"
        assert drawn(now, "own") == (busy if parameters["num_gpus"] else "Trace: no events")
    if lesson == "05_devices":
        assert drawn(now, "own").splitlines()[0] == (
            "[4, 3, 2, 1, 0] cuda:4" if parameters["num_gpus"] else "[] cpu"
        )


def test_a_wrong_type_fails_at_the_first_cell_in_one_line(run):
    with pytest.raises(CellExecutionError) as caught:
        run(with_parameters("03_split", "en", num_gpus="eight"), ROOT / "en")
    assert caught.value.evalue == "num_gpus must be a whole number, got 'eight' (str)"


@pytest.mark.parametrize("language", sync.LANGUAGES)
def test_the_messages_that_are_to_be_matched_are_what_the_lines_say(language):
    """Lesson 05 quotes them: each stands in what one line printed, in the order of the answer."""
    made = sync.read(ROOT, language, "05_devices")
    asked = next(cell.source for cell in made.cells if cell.get("id") == "match-text")
    quoted = re.findall(r"^\| [A-F] \| `(.+)` \|$", asked, re.MULTILINE)
    said = re.split(r"^(?=\d \w+(?:Error|Exception): )", printed(made, "match"), flags=re.MULTILINE)[1:]
    assert len(quoted) == len(said) == 6
    lines = [next(at for at, text in enumerate(said, 1) if one in " ".join(text.split())) for one in quoted]
    assert lines == [5, 3, 2, 4, 6, 1]
