"""The page on writing assignments tells the truth: its example is handed out and graded; exercises of lessons too."""

import json
import re
import shutil
from pathlib import Path

import engine
import pytest

from labkit.base.language import using
from labkit_classroom.assignment import load
from labkit_classroom.checking import check
from labkit_classroom.handout.folder import numbers_of, release
from labkit_classroom.handout.roster import Student

DOCS = Path(__file__).parents[2] / "docs"
PAGES = {"en": "writing-assignments.md", "zh": "writing-assignments.zh.md"}


def files(language):
    """The files that the page shows, by name."""
    text = (DOCS / PAGES[language]).read_text("utf-8")
    return dict(re.findall(r"^`(\w+\.\w+)`\n\n```\w+\n(.*?)\n```$", text, re.DOTALL | re.MULTILINE))


@pytest.fixture(scope="module")
def means(tmp_path_factory):
    folder = tmp_path_factory.mktemp("course") / "means"
    folder.mkdir()
    for name, text in files("en").items():
        (folder / name).write_text(text + "\n", "utf-8")
    return folder


def test_both_pages_show_the_same_files():
    assert list(files("en")) == ["assignment.txt", "drivers.py", "judges.py", "checks.py"]
    assert files("en") == files("zh")


def test_the_example_is_handed_out_solved_and_graded(means, tmp_path):
    assignment = load(means)
    made = release(
        assignment, tmp_path / "class", [Student("20231001", "张三"), Student("b", "B", "en")], "zh"
    )
    for student, language in (("20231001", "zh"), ("b", "en")):
        (path,) = (path for path in made.folder.handout.rglob("*.ipynb") if path.parent.name == student)
        cells = json.loads(path.read_text("utf-8"))["cells"]
        sources = ["".join(cell["source"]) for cell in cells]
        assert {"zh": "把平均值算对", "en": "Means that add up"}[language] in sources[0]
        assert not any("zip(means, sizes)" in source or "judges" in source for source in sources)
        names = {}
        for cell, source in zip(cells, sources, strict=True):
            if cell["cell_type"] == "code" and "check(" not in source.splitlines()[-1]:
                with using("en"):
                    exec(source, names)
        numbers = numbers_of(made.folder, assignment, student)
        assert names["sizes"] == [numbers["full"], numbers["short"]]
    numbers = engine.numbers_of(assignment, "b")
    answers = {question.id: question.solution(numbers) for question in assignment.questions}
    marks = engine.marked(assignment, answers, "b")
    assert {id: mark.points for id, mark in marks.items()} == {"mean": 2, "share": 1}
    answers = {
        "mean": "def mean(means, sizes):\n    return sum(means) / len(means)",
        "share": "factor = {short} / {full}".format(**numbers),
    }
    marks = engine.marked(assignment, answers, "b")
    assert [(part.hint, part.score) for mark in marks.values() for part in mark.parts] == [
        ("mean-of-means", 0),
        ("turned", 0.5),
    ]


def test_its_check_travels_in_the_notebook(means):
    assignment = load(means)
    setup = next(cell for cell in assignment.cells("en", {"full": 4, "short": 2}) if cell.role == "setup")
    with using("en"):
        exec(setup.source, {})
        assert check("means.mean", lambda means, sizes: sum(means) / 2).right is False
        assert check("means.mean", lambda means, sizes: 1.0).right is True
        assert check("means.mean", None).right is None
        with pytest.raises(ValueError, match="it is one of: .*means.mean"):
            check("means.share", 2)


def test_an_assignment_need_not_have_checks(means, tmp_path):
    folder = tmp_path / "unchecked"
    shutil.copytree(means, folder)
    (folder / "checks.py").unlink()
    setup = next(cell for cell in load(folder).cells("en", {"full": 4, "short": 2}) if cell.role == "setup")
    with using("en"):
        exec(setup.source, {})
        with pytest.raises(ValueError, match="no check 'unchecked.mean'"):
            check("unchecked.mean", 1)
