"""Repairs of the ten broken models as learners write them: other right ones, and wrong ones with the hint they get."""

# ruff: noqa: F401  # the attempts use what is imported here
import copy
import json
import re
from pathlib import Path
from random import Random

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

from labkit.base.language import using
from labkit_content.broken import models, repaired
from labkit_content.broken.judging import judge
from labkit_content.repairs import problems, score
from labkit_course import Progress, glossary, hint, progress, repair

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


def attempts():
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


# What the broken models themselves are told.
BROKEN = {
    "tagger": "own_length", "typist": "state_cut", "photos": "channels", "pairs": "own_piece", "roads": "roads_cut",
    "clicks": "flat", "words": "mean_of_means", "experts": "plain_list", "waves": "first_come", "surprise": "lost",
}  # fmt: skip
PROBLEMS = problems("09")
NAMES = list(PROBLEMS)
ATTEMPTS = list(attempts())
WRONG = [one for one in ATTEMPTS if one[2] != "right"]
RIGHT = [one for one in ATTEMPTS if one[2] == "right"]


def test_every_model_has_typical_wrong_repairs():
    for name in NAMES:
        assert sum(one[0] == name for one in WRONG) >= 3


@pytest.mark.parametrize(("name", "model", "_", "points"), RIGHT)
def test_a_right_repair_gets_all_points_whatever_is_drawn(name, model, _, points):
    for seed in (0, 1):  # the reference repair: test_broken.py
        assert judge(PROBLEMS[name], model, Random(seed)) == (points, None)


@pytest.mark.parametrize("name", NAMES)
def test_the_broken_model_gets_no_points(name):
    found = judge(PROBLEMS[name], PROBLEMS[name].broken, Random(0))
    assert (found.points, found.hint.id) == (0, BROKEN[name])


@pytest.mark.parametrize(("name", "model", "id", "points"), WRONG)
def test_a_wrong_repair_gets_the_hint_for_its_misconception(name, model, id, points):
    found = judge(PROBLEMS[name], model, Random(len(id)))
    assert (found.points, found.hint.id) == (points, id)


def test_a_repair_that_only_threads_could_break_is_right_with_a_doubt(language):
    shown = {
        kind: repair("waves", next(model for name, model, id, _ in ATTEMPTS if (name, id) == ("waves", kind)))
        for kind in ("right", "overwritten")
    }
    assert [one.right for one in shown.values()] == [True, True]
    doubt = PROBLEMS["waves"].texts["overwritten"].in_language(language)
    assert [repr(one).endswith(doubt) for one in shown.values()] == [False, True]


@pytest.mark.parametrize("name", NAMES)
def test_a_hint_is_in_both_languages(name):
    *_, (model, id) = (one[1:3] for one in WRONG if one[0] == name)
    found = {}
    for language in ("en", "zh"):
        with using(language):
            found[language] = judge(PROBLEMS[name], model, Random(1)).hint
    assert (found["en"].id, found["zh"].id) == (id, id)
    assert re.search("[一-鿿]", found["zh"].zh)
    assert glossary.problems(found["en"].en, found["zh"].zh) == []


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
