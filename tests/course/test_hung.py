"""Ten broken scripts: each repair of the reference is right, and wrong repairs get the hint for their misconception."""

import inspect
import re
from pathlib import Path
from random import Random

import pytest
from labkit.content.hung import repaired, scripts
from labkit.content.hung.judging import changed
from labkit.content.repairs import problems

from labkit.course import glossary, progress

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
PROBLEMS = problems("19")
NAMES = list(PROBLEMS)


def attempts():
    """Of repairs_of_scripts.txt: (problem, source of the attempt, hint or "right", points)."""
    for block in (Path(__file__).parent / "repairs_of_scripts.txt").read_text("utf-8").split("\n%% ")[1:]:
        head, *lines = block.rstrip().splitlines()
        name, of, id, points = head.split()
        source = inspect.getsource(getattr({"broken": scripts, "repaired": repaired}[of], name))
        for part in "\n".join(lines).split("\n@\n"):
            old, new = (
                "".join(f"{line[2:]}\n" for line in part.splitlines() if line[0] == sign) for sign in "-+"
            )
            assert source.count(old) == 1, (head, old)
            source = source.replace(old, new)
        yield name, source, id, int(points)


def made(name, source):
    return changed(getattr(scripts, name), (inspect.getsource(getattr(scripts, name)), source))


ATTEMPTS = list(attempts())
WRONG = [one for one in ATTEMPTS if one[2] != "right"]
RIGHT = [one for one in ATTEMPTS if one[2] == "right"]

# The hints that the broken scripts themselves get.
BROKEN = {
    "validate": "still_some", "teams": "own_lists", "shift": "all_send", "finish": "still_uneven", "score": "ordinal",
    "accumulate": "every_pass", "defer": "every_pass", "shard": "unmoved", "scale": "both", "denoise": "same_noise",
}  # fmt: skip


@pytest.fixture(autouse=True)
def _own_progress(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_PROGRESS", str(tmp_path / "progress.json"))
    monkeypatch.setattr(progress, "_unwritten", set())


def test_there_are_ten_for_a_hundred_points_and_wrong_repairs_enough():
    assert len(PROBLEMS) == len(BROKEN) == 10
    assert len(WRONG) >= 60
    assert all(sum(one[0] == name for one in WRONG) >= 5 for name in NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_the_reference_gets_all_points_and_the_broken_script_none_whatever_is_drawn(name):
    problem = PROBLEMS[name]
    assert problem.judge(problem.repaired, Random(1)) == (10, None)
    for seed in range(2):
        found = problem.judge(problem.broken, Random(seed))
        assert (found.points, found.hint.id) == (0, BROKEN[name])


def named(attempts):
    return [f"{name}-{id}" for name, _, id, _ in attempts]


@pytest.mark.parametrize(("name", "source", "id", "points"), RIGHT, ids=named(RIGHT))
def test_another_right_repair_gets_all_points(name, source, id, points):
    assert PROBLEMS[name].judge(made(name, source), Random(3)) == (points, None)


@pytest.mark.parametrize(("name", "source", "id", "points"), WRONG, ids=named(WRONG))
def test_a_wrong_repair_gets_the_hint_for_its_misconception_in_both_languages(name, source, id, points):
    problem, attempt = PROBLEMS[name], made(name, source)
    found = problem.judge(attempt, Random(len(id)))
    assert (found.points, found.hint and found.hint.id) == (points, id), found.hint
    assert re.search("[一-鿿]", found.hint.zh)
    assert "labkit" not in found.hint.en
    english, chinese = (text.partition("\n```")[0] for text in (found.hint.en, found.hint.zh))
    assert glossary.problems(english, chinese) == []
