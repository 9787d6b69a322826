"""Ten broken scripts: each repair of the reference is right, and wrong repairs get the hint for their misconception."""

import linecache
import re
from pathlib import Path
from random import Random

import pytest
import torch

from labkit.base.language import using
from labkit_content.hung.judging import Setting, repaired, scripts, settings
from labkit_content.repairs import problems, score
from labkit_content.repairs.comparing import is_close
from labkit_course import Progress, hint, repair, torchrun
from tools.author import sync

pytestmark = pytest.mark.usefixtures("own_progress")
NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
PROBLEMS = problems("19")


def test_a_result_that_is_no_number_is_like_no_other():
    """What is received too soon is what lay in the memory before: it can be anything."""
    one, nan, endless = torch.ones(2), torch.tensor([1.0, torch.nan]), torch.tensor([1.0, torch.inf])
    assert is_close(endless, endless)
    assert not any(
        is_close(*pair) for pair in [(one, nan), (nan, one), (one, endless), (5 * endless, endless)]
    )
    assert is_close(one + 1e-5, one)
    assert is_close(torch.zeros(0), torch.zeros(0))


def cells():
    return {cell.id: cell.source for cell in sync.read(NOTEBOOKS, "en", "19_hung").cells}


def as_in_a_notebook(source):
    """The function of a cell, whose source Python finds as it finds that of a cell."""
    name = f"<cell {len(linecache.cache)}>"
    linecache.cache[name] = len(source), None, source.splitlines(keepends=True), name
    made = {"__name__": "__main__"}
    exec(cells()["begin"].partition("from labkit")[0], made)
    exec(compile(source, name, "exec"), made)
    return made[re.search(r"def (\w+)", source)[1]]


def test_an_unchanged_script_shows_where_its_ranks_stand_in_the_learners_own_lines(language):
    verdict = repair("finish", as_in_a_notebook(cells()["finish-class"] + "  # mine\n"))
    assert verdict.right is None
    assert re.search(r"rank 0  .+cell \d+:8 in finish", repr(verdict))
    assert verdict._repr_html_().count("<svg") == 1
    assert score.best_points("finish") is None
    assert repr(repair("finish", None)).count("\n") > 5


def test_calls_that_differ_are_drawn_too():
    drawn = repair("validate", None).picture
    assert [(one.call, one.waits_for) for one in drawn.ranks] == [
        ("all_reduce", (1, 2, 3)), *[("all_reduce", (0,))] * 3,
    ]  # fmt: skip


def test_a_run_to_look_at_shows_prints_results_and_calls_and_where_ranks_hang():
    torch.manual_seed(0)
    shown = repr(torchrun("scale", scripts.scale, nproc_per_node=2))
    assert re.match(r"2 ranks:\nrank 0 │ \d+ tokens in 2 x \d batches\nranks 0, 1: \[tensor", shown)
    assert re.search(r"calls of rank 0: .*\d all_reduce", shown)
    assert repr(torchrun("score", scripts.score, nproc_per_node=2, nnodes=2)).startswith(
        "2 nodes of 2 ranks:\nrank 2: AcceleratorError: CUDA error: invalid device ordinal (<score>, line "
    )
    hung = torchrun("finish", scripts.finish, nproc_per_node=3)
    assert "it hangs; the ranks wait here:" in repr(hung)
    assert "<svg" in hung._repr_html_()
    with pytest.raises(ValueError, match="name must be one of 'validate', 'teams'"):
        torchrun("tagger", None)
    with pytest.raises(TypeError, match="pass the function itself"):
        torchrun("finish", 3)


@pytest.mark.parametrize(
    ("attempt", "id"), [(3, "no_function"), (Setting, "no_function"), (lambda *given: None, "nothing")]
)
def test_what_is_no_repair_is_refused_in_words(attempt, id):
    found = PROBLEMS["shard"].judge(attempt, Random(0))
    assert (found.points, found.hint.id) == (0, id)


def test_the_settings_are_other_ranks_nodes_and_one_rank():
    for seed in range(10):
        drawn = [setting for reached, setting in settings(PROBLEMS["scale"], Random(seed)) if reached]
        assert {1, 8} <= {one.ranks for one in drawn}
        assert any(one.ranks % 2 or one.ranks == 6 for one in drawn)
        assert any(one.nodes > 1 for one in drawn)
        assert not any(one.plain for one in drawn)


def test_the_board_has_both_lessons_of_repairs():
    hint("scale", 1)
    repair("scale", repaired.scale)
    board = repr(Progress())
    assert "Ten broken scripts: 9 of 100 points" in board
    assert "  scale       best 10, hints 1, points  9" in board
    assert "Ten broken models" not in board
    with using("zh"):
        assert "十个出了毛病的脚本：9 / 100 分" in repr(Progress())
