"""Repairs of the ten models and ten scripts as learners write them: right ones, and wrong ones with their hint."""

# ruff: noqa: F401  # the attempts use what is imported here
import copy
import inspect
import json
import linecache
import re
from pathlib import Path
from random import Random

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

from labkit.base.language import using
from labkit_content.broken import repaired
from labkit_content.broken.judging import judge, models
from labkit_content.hung.judging import change_lines, replace_source, scripts
from labkit_content.hung.judging import repaired as repaired_scripts
from labkit_content.repairs import problems, score
from labkit_course import Progress, glossary, hint, repair
from tools.author import sync

pytestmark = pytest.mark.usefixtures("own_progress")


def tagger(packed_length, cpu=True):
    """A tagger that pads to ``packed_length(tokens, lengths)``."""

    class Tagger(models.Tagger):
        def forward(self, tokens, lengths):
            packed = pack_padded_sequence(
                self.embed(tokens), lengths.cpu() if cpu else lengths, batch_first=True, enforce_sorted=False
            )
            length = packed_length(tokens, lengths)
            return self.tag(
                pad_packed_sequence(self.rnn(packed)[0], batch_first=True, total_length=length)[0]
            )

    return Tagger


def turned(state):
    return tuple(part.transpose(0, 1).contiguous() for part in state)


def words(forward, after):
    class Words(models.Words):
        def forward(self, tokens, targets):
            scores = self.word(self.rnn(self.embed(tokens))[0])
            losses = F.cross_entropy(scores.transpose(1, 2), targets, ignore_index=-1, reduction="none")
            return forward(losses, targets != -1)

    Words.after = lambda self, output: after(output)
    return Words


def by_piece(losses, real):
    return losses.sum().reshape(1), real.sum().reshape(1)


def by_row(losses, real):
    return losses.sum(dim=1), real.sum(dim=1)


def repairs_of_models():
    """Of repairs_of_models.txt: (model, the attempt, hint or "right", points)."""
    names = globals().copy()
    text = (Path(__file__).parent / "repairs_of_models.txt").read_text("utf-8")
    for heading, source in re.findall(r"^=== (.*)\n((?:(?!===).+\n)*)", text, re.MULTILINE):
        name, id, points = heading.split(" | ")
        if source.startswith("class "):
            exec(source, names)
            attempt = names[re.match(r"class (\w+)", source)[1]]
        else:
            attempt = eval(source, names)
        yield name, attempt, id, int(points)


def repairs_of_scripts():
    """Of repairs_of_scripts.txt: (script, the attempt, hint or "right", points)."""
    for block in (Path(__file__).parent / "repairs_of_scripts.txt").read_text("utf-8").split("\n%% ")[1:]:
        head, *lines = block.rstrip().splitlines()
        name, of, id, points = head.split()
        source = inspect.getsource(getattr({"broken": scripts, "repaired": repaired_scripts}[of], name))
        source = change_lines(source, "\n".join(lines).replace("\n@\n", "\n\n"))
        broken = getattr(scripts, name)
        yield name, replace_source(broken, (inspect.getsource(broken), source)), id, int(points)


# The hints that the broken models and scripts themselves get.
BROKEN = {
    "tagger": "own_length", "typist": "state_cut", "photos": "channels", "pairs": "own_piece", "roads": "roads_cut",
    "clicks": "flat", "words": "mean_of_means", "experts": "plain_list", "waves": "first_come", "surprise": "lost",
    "validate": "still_some", "teams": "own_lists", "shift": "all_send", "finish": "still_uneven", "score": "ordinal",
    "accumulate": "every_pass", "defer": "every_pass", "shard": "unmoved", "scale": "both", "denoise": "same_noise",
}  # fmt: skip
MODELS, SCRIPTS = problems("09"), problems("19")
PROBLEMS = MODELS | SCRIPTS
ATTEMPTS = [*repairs_of_models(), *repairs_of_scripts()]
WRONG = [one for one in ATTEMPTS if one[2] != "right"]
RIGHT = [one for one in ATTEMPTS if one[2] == "right"]


def judged(name, attempt, seed):
    problem = PROBLEMS[name]
    return judge(problem, attempt, Random(seed)) if name in MODELS else problem.judge(attempt, Random(seed))


def named(attempts):
    return [f"{name}-{id}" for name, _, id, _ in attempts]


def test_there_are_twice_ten_for_a_hundred_points_and_typical_wrong_repairs_of_each():
    assert len(MODELS) == len(SCRIPTS) == len(BROKEN) // 2 == 10
    assert sum(score.COSTS) == 10
    for name in PROBLEMS:
        assert sum(one[0] == name for one in WRONG) >= 3


@pytest.mark.parametrize(("name", "attempt", "_", "points"), RIGHT, ids=named(RIGHT))
def test_a_right_repair_gets_all_points_whatever_is_drawn(name, attempt, _, points):
    for seed in (0, 1):  # the reference repair: the end of the ladder, below
        assert judged(name, attempt, seed) == (points, None)


@pytest.mark.parametrize("name", PROBLEMS)
def test_what_is_broken_gets_no_points(name):
    found = judged(name, PROBLEMS[name].broken, 0)
    assert (found.points, found.hint.id) == (0, BROKEN[name])


@pytest.mark.parametrize(("name", "attempt", "id", "points"), WRONG, ids=named(WRONG))
def test_a_wrong_repair_gets_the_hint_for_its_misconception_in_both_languages(name, attempt, id, points):
    found = judged(name, attempt, len(id))
    assert (found.points, found.hint and found.hint.id) == (points, id), found.hint
    english, chinese = (text.partition("\n```")[0] for text in (found.hint.en, found.hint.zh))
    assert re.search("[一-鿿]", chinese)
    assert glossary.problems(english, chinese) == []


def cells(lesson):
    root = Path(__file__).parents[2] / "notebooks"
    return {cell.id: cell.source for cell in sync.read(root, "en", lesson).cells}


CELLS = {name: cells("09_broken" if name in MODELS else "19_hung") for name in PROBLEMS}


@pytest.mark.parametrize("name", PROBLEMS)
def test_the_notebook_asks_to_repair_what_it_shows(name):
    assert CELLS[name][name] == f'repair("{name}", {PROBLEMS[name].broken.__name__})'
    assert name in SCRIPTS or 9 <= len(CELLS[name][f"{name}-class"].splitlines()) <= 25


@pytest.mark.parametrize("name", PROBLEMS)
def test_the_ladder_ends_in_code_that_is_right_and_is_in_both_languages(name):
    problem = PROBLEMS[name]
    told = [problem.texts[name] for name in ("symptom", "where", "cure", "why")]
    assert len(told) == len(score.COSTS)
    for text in told:
        assert re.search("[一-鿿]", text.zh)
        assert glossary.problems(text.en, text.zh) == []
    assert repr(hint(name, 4)).count("\n") >= 5
    assert hint(name, 4)._repr_html_().count("<li>") == 4
    # (As it is shown, below what is broken and in the notebook's own names, its source as Python finds that of a cell.)
    code = f"<cell {len(linecache.cache)}>"
    linecache.cache[code] = 1, None, problem.source().splitlines(keepends=True), code
    made = {"__name__": "__main__"}
    exec(re.split("import labkit|from labkit", CELLS[name]["begin"])[0], made)
    exec(CELLS[name][f"{name}-class"], made)
    exec(compile(problem.source(), code, "exec"), made)
    assert judged(name, made["Repaired" if name in MODELS else problem.broken.__name__], 7) == (10, None)


def test_a_repair_that_only_threads_could_break_is_right_with_a_doubt(language):
    shown = {
        kind: repair("waves", next(model for name, model, id, _ in ATTEMPTS if (name, id) == ("waves", kind)))
        for kind in ("right", "overwritten")
    }
    assert [one.right for one in shown.values()] == [True, True]
    doubt = PROBLEMS["waves"].texts["overwritten"].in_language(language)
    assert [repr(one).endswith(doubt) for one in shown.values()] == [False, True]


def test_a_score_keeps_the_best_and_counts_hints(tmp_path):
    surprise = {id: model for name, model, id, _ in WRONG if name == "surprise"}
    assert "5 of 10 points so far" in repr(repair("surprise", surprise["mean_of_means"]))
    assert score.points("surprise") == 5
    assert "8 of 10 points so far" in repr(repair("surprise", surprise["eval"]))
    assert "arrives.) (Your best repair, 8 points, stays.)" in repr(
        repair("surprise", surprise["first_piece"])
    )
    hint("surprise", 2)
    hint("surprise", 2)
    hint("surprise")
    assert (score.hints_taken("surprise"), score.points("surprise")) == (2, 5)
    told = repr(repair("surprise", PROBLEMS["surprise"].repaired))
    assert "Repaired: 7 points (10 less 3 for hints). Total: 7 of 100." in told
    kept = json.loads((tmp_path / "progress.json").read_text("utf-8"))
    reached = [f"surprise {n}" for n in (0, 10, 5, 8)]
    assert kept == {"hinted": ["surprise 1", "surprise 2"], "reached": reached}
    board = repr(Progress())
    assert "Ten broken models: 7 of 100 points" in board
    assert "  Surprise  best 10, hints 2, points  7" in board
    with using("zh"):
        assert "十个出了毛病的模型：7 / 100 分" in repr(Progress())
    shown = repr(hint("surprise", 4))  # all points were reached: a look at the code costs nothing
    assert "class Repaired(Surprise)" in shown
    assert "cost nothing" in shown
    assert (score.hints_taken("surprise"), score.points("surprise")) == (2, 7)
