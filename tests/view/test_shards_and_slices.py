"""Which bytes and which numbers lie on which rank: the plans, what is drawn of them, and what cannot be drawn."""

import pytest
import torch

import labkit
from labkit.plans.shards import KINDS, Shards
from labkit.view.layout import text_width
from labkit_ranks.pictures.heat_maps import heat_picture
from labkit_ranks.pictures.shard_lanes import shards_picture
from labkit_ranks.plans.slices import column_row

BILLION = 10**9


@pytest.mark.parametrize(("stage", "paper"), [(0, 120), (1, 31.4), (2, 16.6), (3, 1.9)])
def test_the_stages_have_the_bytes_of_their_paper(stage, paper):
    """Rajbhandari and others, 2020: 7.5 billion parameters, 64 GPUs."""
    assert round(Shards(stage, 64, 75 * BILLION // 10).total / 1e9, 1) == paper


def test_one_rank_shards_nothing():
    assert Shards(3, 1, 100).total == Shards(0, 1, 100).total == 1600
    with pytest.raises(ValueError, match="stage must be from 0 to 3, got 4"):
        Shards(4, 2, 1)


def filled(picture, kind):
    return [box for box in picture.boxes if box.label.split()[-1] == kind and box.label.count(" ") == 2]


def test_shards_lie_beside_one_another_and_what_is_whole_on_every_rank():
    picture = shards_picture(Shards(2, 4, BILLION, BILLION, 3 * BILLION))
    weights, gradients, optimizer = (filled(picture, kind) for kind in KINDS)
    assert len({box.x for box in weights}) == 1
    for boxes in (gradients, optimizer):
        for one, other in zip(boxes, boxes[1:], strict=False):
            assert other.x == pytest.approx(one.x + one.width)
    assert optimizer[0].width == pytest.approx(6 * gradients[0].width)
    assert "too little" in picture.description
    assert "too little" not in shards_picture(Shards(3, 4, BILLION, 0, 5 * BILLION)).description


def test_only_what_other_ranks_hold_has_a_dashed_edge():
    picture = shards_picture(Shards(2, 4, BILLION, BILLION, 3 * BILLION))
    edges = {box.label.split()[-1]: box.dashed for box in picture.boxes if " whole " in box.label}
    assert edges == {"weights": False, "gradients": True, "optimizer": True, "activations": False}


def test_how_much_is_too_much_is_as_large_as_the_names_and_away_from_the_edge(language):
    picture = shards_picture(Shards(0, 4, 20 * BILLION, 64 * BILLION, 80 * BILLION))
    notes = [text for text in picture.texts if text.bold]
    assert len(notes) == 4
    for note in notes:
        assert note.size == 13
        assert text_width(note.text, 13) * 1.08 + 4 <= note.x <= picture.width - 4


@pytest.mark.parametrize("ranks", range(1, 9))
def test_partial_sums_of_all_ranks_are_the_output_and_no_number_is_on_two_ranks(ranks):
    parts = column_row(ranks, 3)
    partial = torch.tensor(parts["partial"])
    assert partial.sum(0).tolist() == parts["output"][0]
    for name in ("W1", "hidden", "W2"):
        held = torch.tensor([[[value is not None for value in row] for row in part] for part in parts[name]])
        assert (held.sum(0) == 1).all()
    assert all(value is None for row in column_row(ranks, 0)["hidden"][0] for value in row)
    alone = column_row(1, 0)
    x, w1, w2 = (
        torch.tensor([r[:width] for r in alone[name][0]]) for name, width in (("x", 3), ("W1", 8), ("W2", 3))
    )
    assert (torch.relu(x @ w1) @ w2).tolist() == parts["output"][0]


def test_cells_are_the_darker_the_farther_from_0_and_gaps_stay_empty(sound):
    picture = heat_picture(labkit.HeatMaps({"W": [[[0, -4, None]], torch.tensor([2.0, 1.0, 0.0])]}))
    sound(picture)
    tints = {box.label + f" {box.gpu}": box.tint for box in picture.boxes if box.gpu is not None}
    assert tints["W 0 1 0"] == 0
    assert tints["W 0 1 0"] < tints["W 0 0 1"] < tints["W 0 1 1"] < tints["W 0 0 0"]
    assert "W 0 2 0" not in tints
    assert repr(labkit.HeatMaps({"W": [[1, 2]]})) == "W: 1×2"


def test_each_step_of_the_slices_says_what_was_computed():
    told = [labkit.SlicesExplorer(step=step).make_picture().description for step in range(4)]
    for step, name in enumerate(("W1", "hidden", "partial", "output")):
        assert told[step].startswith(f"Step {step}: ")
        assert [name in one.partition(".")[0] for one in told[: step + 1]] == [False] * step + [True]


@pytest.mark.parametrize("odd", [torch.zeros(65, 2), [[1], [1, 2]], [], torch.zeros(2, 2, 2), 3.0])
def test_what_is_no_small_matrix_is_named(odd):
    with pytest.raises(ValueError, match="W must be a matrix of at most 64 × 64"):
        labkit.HeatMaps({"W": [odd]})
    with pytest.raises(ValueError, match="maps must be a matrix for each rank"):
        labkit.HeatMaps({"W": [[1]], "V": [[1], [2]]})
