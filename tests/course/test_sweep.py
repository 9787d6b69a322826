"""``labkit sweep``: a lesson once per number of GPUs, and the page that compares the runs."""

import os
import signal

import nbformat
import pytest

import labkit
from labkit.base.language import using
from labkit_cli import main
from labkit_course.notebooks import kernel, report, sweep

pytestmark = pytest.mark.usefixtures("warm_kernels")

CELLS = {
    "parameters": "num_gpus: int = 2\nbatch_size = 10\ndata_size = 25\nrate = 0.5\nverbose = False\nlanguage = 'en'",
    "shapes": "for _ in range(num_gpus):\n    print('inside torch.Size([%d, 5])' % num_gpus)",
    "same": "print('torch.Size([7])')",
    "fails": "assert num_gpus != 3, 'three is <too many>'\nprint(rate, verbose, language)",
    "progress": "import os\nprint(os.environ['LABKIT_PROGRESS'])",
}


@pytest.fixture
def lesson(tmp_path, monkeypatch):
    """A folder with a small lesson in notebooks/en, and no other file."""
    monkeypatch.chdir(tmp_path)
    cells = [nbformat.v4.new_markdown_cell("# 99 · What is <this>?", id="title")]
    for name, source in CELLS.items():
        tags = {"tags": ["parameters"]} if name == "parameters" else {}
        cells.append(nbformat.v4.new_code_cell(source, id=name, metadata=tags))
    notebook = nbformat.v4.new_notebook(cells=cells)
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    path = tmp_path / "notebooks" / "en" / "99_small.ipynb"
    path.parent.mkdir(parents=True)
    nbformat.write(notebook, path)
    return path


LESSON = "notebooks/en/99_small.ipynb"


def files(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_failing_run_is_kept_and_named_and_the_others_finish(lesson, tmp_path, capsys):
    code = main(["sweep", LESSON, "--gpus", "1", "3", "2", "--out", "made", "-p", "rate", "2"])
    assert code == 1
    assert files(tmp_path / "made") == [
        *(f"99_small-{count}-gpus.{kind}" for count in (1, 2, 3) for kind in ("html", "ipynb")), "report.html",
    ]  # fmt: skip
    done = capsys.readouterr()
    assert done.out.splitlines()[1].startswith(
        "3 GPUs: FAILED, cell fails: AssertionError: three is <too many>"
    )
    assert [line.split()[2] for line in done.out.splitlines()[:3:2]] == ["ok", "ok"]
    assert "99_small on 3 GPUs" in done.err
    page = (tmp_path / "made/report.html").read_text("utf-8")
    assert "<h1>99 · What is &lt;this&gt;?" in page
    assert "cell fails: AssertionError: three is &lt;too many&gt;" in page
    assert '<a href="99_small-3-gpus.html">' in page
    assert "<td>4 ×2, 2</td>" in page, "the split of 10 rows on 3 GPUs"
    assert "inside torch.Size([2, 5])  × 2" in page
    assert "torch.Size([7])" not in page, "what every run prints alike is no comparison"
    assert page.count("<svg") == 6, "a picture of the full and of the short batch for each"
    executed = nbformat.read(tmp_path / "made/99_small-2-gpus.ipynb", as_version=4)
    assert executed.cells[-2].outputs[0].text == "2.0 False en\n"
    assert executed.cells[-1].outputs[0].text == "off\n", "a sweep is nobody's progress"
    assert (tmp_path / "made/99_small-3-gpus.html").stat().st_size > 1000


def test_nothing_that_exists_is_overwritten_without_force(lesson, tmp_path, capsys):
    mine = tmp_path / "made" / "99_small-2-gpus.ipynb"
    mine.parent.mkdir()
    mine.write_text("mine")
    assert main(["sweep", LESSON, "--gpus", "1", "2", "--out", "made"]) == 2
    assert "made/99_small-2-gpus.ipynb exists: --force overwrites" in capsys.readouterr().err
    assert (files(mine.parent), mine.read_text()) == (["99_small-2-gpus.ipynb"], "mine")
    assert main(["sweep", LESSON, "--gpus", "2", "2", "--out", "made", "--force"]) == 0
    assert mine.read_text() != "mine"
    done = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in done] == ["2 GPUs", "report"], "each number once"
    assert "torch.Size([7])" in (mine.parent / "report.html").read_text("utf-8"), (
        "a single run shows all shapes"
    )


def test_a_sweep_that_is_stopped_keeps_its_finished_runs(lesson, tmp_path, monkeypatch):
    execute = sweep.execute

    def stop_at_two(plan, count):
        if count == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return execute(plan, count)

    monkeypatch.setattr(sweep, "execute", stop_at_two)
    assert main(["sweep", LESSON, "--gpus", "1", "2", "--out", "made"]) == 130
    assert files(tmp_path / "made") == ["99_small-1-gpus.html", "99_small-1-gpus.ipynb", "report.html"]
    assert (tmp_path / "made/report.html").read_text("utf-8").count("not run") == 1


def test_a_kernel_says_nothing_of_its_own_troubles(lesson, capfd):
    """One that Ctrl-C ends in the middle of a cell logs, as an error, that its sockets are closed."""
    notebook = nbformat.read(lesson, 4)
    notebook.cells[2].source = "get_ipython().kernel.log.error('Socket operation on non-socket')"
    nbformat.write(notebook, lesson)
    assert main(["sweep", LESSON, "--gpus", "2"]) == 0
    assert "Socket operation" not in capfd.readouterr().err


def test_a_disk_that_is_full_is_one_line_before_anything_is_run(lesson, tmp_path, monkeypatch, capsys):
    def fails(descriptor):
        raise OSError(28, "No space left on device")

    ran = []
    monkeypatch.setattr(sweep, "execute", lambda plan, count: ran.append(count))
    monkeypatch.setattr(os, "fsync", fails)
    assert main(["sweep", LESSON, "--gpus", "1", "--out", "made"]) == 74
    err = capsys.readouterr().err
    assert len(err.splitlines()) == 1
    assert "made/report.html: the disk is full" in err
    assert (ran, files(tmp_path / "made")) == ([], [])


def test_a_cell_without_end_fails_its_run(lesson, tmp_path, capsys):
    text = lesson.read_text("utf-8").replace(
        "print('torch.Size([7])')", "import time\\nwhile True: time.sleep(1)"
    )
    lesson.write_text(text, "utf-8")
    assert main(["sweep", LESSON, "--gpus", "1", "--out", "made", "--cell-timeout", "1"]) == 1
    said = "cell same: still running after 1 s (--cell-timeout)"
    assert said in capsys.readouterr().out
    page = (tmp_path / "made/report.html").read_text("utf-8")
    assert said in page
    assert "at most 1 s a cell" in page


def test_a_language_before_the_command_is_one_that_is_asked_for(lesson, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(
        sweep, "execute", lambda plan, count: seen.append(plan.parameters["language"]) or 1 / 0
    )
    for front, back in ((["--lang", "zh"], []), ([], ["--lang", "zh"]), ([], [])):
        # What ends it is a crash, which has a code of its own.
        assert main([*front, "sweep", str(lesson), "--gpus", "1", "--out", "made", "--force", *back]) == 70
    assert seen == ["zh", "zh", "en"]


@pytest.mark.more
def test_a_real_lesson_in_chinese(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["sweep", "03_split", "--gpus", "0", "8", "--lang", "zh"]) == 0
    page = (tmp_path / "out/03_split-zh/report.html").read_text("utf-8")
    assert '<html lang="zh-CN">' in page
    assert "<td>4 ×7, 2</td>" in page
    assert '<td>2 ×5<br><span class="soft">3 块空闲</span></td>' in page
    assert "(在 CPU 上)" in page
    rendered = (tmp_path / "out/03_split-zh/03_split-8-gpus.html").read_text("utf-8")
    assert '<html lang="zh"' in rendered
    assert "8 块模拟 GPU" in rendered
    assert "image/svg+xml" in rendered or "<svg" in rendered, "the explorer's still picture"


@pytest.mark.parametrize(("arguments", "text"), [
    ([LESSON, "--gpus", "eight"], "must be a whole number of at least 0, got 'eight'"),
    ([LESSON, "--gpus", "2", "-1"], "a whole number of at least 0, got '-1'"),
    ([LESSON], "arguments are required: --gpus"),
    (["98_none", "--gpus", "2"], "no such lesson: '98_none'; the lessons are 00_start"),
    (["missing.ipynb", "--gpus", "2"], "no such notebook: missing.ipynb"),
    (["broken.ipynb", "--gpus", "2"], "broken.ipynb is not a readable notebook"),
    ([LESSON, "--gpus", "2", "--lang", "fr"], "invalid choice: 'fr'"),
    ([LESSON, "--gpus", "2", "-p", "bacth_size", "3"], "has no parameter 'bacth_size'; its parameters: num_gpus"),
    ([LESSON, "--gpus", "2", "-p", "batch_size", "ten"], "batch_size must be a whole number, got 'ten'"),
    ([LESSON, "--gpus", "2", "-p", "num_gpus", "3"], "set the parameter num_gpus with --gpus"),
    ([LESSON, "--gpus", "2", "-p", "language", "zh"], "set the parameter language with --lang"),
    ([LESSON, "--gpus", "2", "--out", "broken.ipynb"], "--out must be a folder"),
])  # fmt: skip
def test_bad_usage_is_one_line_and_nothing_is_written(lesson, tmp_path, capsys, arguments, text):
    (tmp_path / "broken.ipynb").write_text("{no notebook")
    before = sorted(tmp_path.rglob("*"))
    assert main(["sweep", *arguments]) == 2
    done = capsys.readouterr()
    assert text in done.err
    assert (len(done.err.splitlines()), done.out) == (1, "")
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(("name", "value", "fitted"), [
    ("num_gpus", "3", 3), ("data_size", "50", 50), ("rate", "1", 1.0), ("verbose", "True", True),
    ("language", "5", "5"),
])  # fmt: skip
def test_a_text_is_read_as_the_declared_type(lesson, name, value, fitted):
    known = sweep.declared_parameters(nbformat.read(lesson, as_version=4))
    found = sweep.fit(known, name, value)
    assert (found, type(found)) == (fitted, type(fitted))


@pytest.mark.parametrize(
    ("name", "value"),
    [("data_size", "1.5"), ("data_size", "True"), ("data_size", "print(1)"), ("verbose", "1"), ("rate", "fast"),
     ("language", 5), ("x = 1; y", "1")],
)  # fmt: skip
def test_another_type_or_name_is_refused(lesson, name, value):
    known = sweep.declared_parameters(nbformat.read(lesson, as_version=4))
    with pytest.raises(ValueError, match="parameter"):
        sweep.fit(known, name, value)


@pytest.mark.parametrize("before", [None, "mine.json"])
def test_a_kernel_that_starts_at_the_third_try_keeps_no_progress(monkeypatch, before):
    monkeypatch.delenv("LABKIT_PROGRESS")
    if before:
        monkeypatch.setenv("LABKIT_PROGRESS", before)
    seen = []

    def begin():
        seen.append(os.environ["LABKIT_PROGRESS"])
        if len(seen) < 3:
            raise TimeoutError
        return "kernel"

    assert kernel.start(begin) == "kernel"
    assert seen == ["off"] * 3
    assert os.environ.get("LABKIT_PROGRESS") == before


@pytest.mark.parametrize(("arguments", "text"), [
    (["--gpus", "2", "-p", "data_size", "0"], "data_size must be from 1 to 1000000, got 0"),
    (["--gpus", "2", "-p", "batch_size", "0"], "batch_size must be from 1 to 1000000, got 0"),
    (["--gpus", "2", "65"], "num_gpus must be from 0 to 64, got 65"),
])  # fmt: skip
def test_what_a_lesson_would_refuse_is_refused_before_a_kernel_starts(
    tmp_path, monkeypatch, capsys, arguments, text
):
    monkeypatch.chdir(tmp_path)
    assert main(["sweep", "03_split", *arguments]) == 2
    assert text in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_report_says_what_has_no_gpu_or_no_rows():
    with using("en"):
        assert report._pieces(labkit.split(3, 1), 0) == '3 <span class="soft">(on the CPU)</span>'
        assert report._pieces(labkit.split(4, 2), 2) == "2 ×2"
        assert report._pieces(labkit.split(3, 8), 8) == '1 ×3<br><span class="soft">5 idle</span>'
    with using("zh"):
        assert report._pieces(labkit.split(3, 8), 8).endswith(">5 块空闲</span>")


@pytest.mark.parametrize("rows", [0, "25", True])
def test_a_report_of_a_notebook_without_numbers_of_rows_has_no_splits(lesson, tmp_path, rows):
    given = {"data_size": 25, "batch_size": 10}
    plan = sweep.Sweep(lesson, (2,), given, tmp_path)
    assert [(one.batch, one.sizes) for one in report._splits(plan, 2)] == [(10, (5, 5)), (5, (3, 2))]
    for name in given:
        assert report._splits(sweep.Sweep(lesson, (2,), given | {name: rows}, tmp_path), 2) == []


def test_a_notebook_whose_parameters_name_no_gpus_cannot_be_swept(lesson, tmp_path, capsys):
    notebook = nbformat.read(lesson, as_version=4)
    notebook.cells[1].source = "rate = 0.5\nprint(rate)"
    nbformat.write(notebook, lesson)
    assert sweep.declared_parameters(notebook) == {"rate": 0.5}
    assert main(["sweep", LESSON, "--gpus", "2"]) == 2
    assert "has no parameter num_gpus or num_ranks: there is nothing to sweep" in capsys.readouterr().err
