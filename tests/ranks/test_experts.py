"""Routing as integers and its picture: rows are kept and counted, gradients are those that autograd finds."""

import pytest
import torch

from labkit_ranks.pictures.expert_lanes import experts_picture
from labkit_ranks.plans.experts import TOKENS, Routing

ROUTINGS = [Routing(4, 2, 125, 1), Routing(4, 0, 400, 2), Routing(3, 5, 50, 2), Routing(1, 0, 100, 1)]


def by_autograd(routing, ranks):
    """The gradient of the bias that is added to all scores."""
    bias = torch.zeros(routing.ranks, dtype=torch.float64, requires_grad=True)
    loss = torch.zeros((), dtype=torch.float64)
    for rank in ranks:
        for token, (weights, losses) in enumerate(routing._drawn[rank]):
            now = (torch.tensor(weights, dtype=torch.float64).log() + bias).softmax(0)
            loss = loss + sum(now[e] * losses[e] for r, t, e in routing.kept if (r, t) == (rank, token))
    (loss / (len(ranks) * TOKENS)).backward()
    return bias.grad.tolist()


@pytest.mark.parametrize("routing", ROUTINGS, ids=repr)
def test_the_routers_gradient_is_that_of_autograd_and_one_gpus_is_the_mean_of_the_ranks(routing):
    every = range(routing.ranks)
    for ranks in (every, [0], [routing.ranks - 1]):
        assert routing.gradient(ranks) == pytest.approx(by_autograd(routing, ranks), abs=1e-9)
    parts = [routing.gradient([rank]) for rank in every]
    assert routing.gradient(every) == pytest.approx(
        [sum(one) / routing.ranks for one in zip(*parts, strict=True)]
    )


@pytest.mark.parametrize("routing", ROUTINGS, ids=repr)
def test_an_expert_takes_rows_up_to_its_capacity_and_no_row_is_lost_before_that(routing):
    sent = [row for rows in routing.arrivals for row in rows]
    assert len(sent) == len(set(sent)) == routing.ranks * TOKENS * min(routing.k, routing.ranks)
    columns = [sum(column) for column in zip(*routing.counts, strict=True)]
    assert columns == [min(len(rows), routing.room) for rows in routing.arrivals]


def test_skew_fills_expert_0_and_leaves_the_others_less():
    shares = [len(Routing(4, skew, 400, 1).arrivals[0]) for skew in range(6)]
    assert shares == sorted(shares)
    assert shares[0] < 14 < 24 < shares[-1]


@pytest.mark.parametrize("routing", ROUTINGS, ids=repr)
def test_the_picture_has_every_row_once_and_bars_as_high_as_the_gradient(routing, language, sound):
    picture = experts_picture(routing)
    sound(picture)
    rows = [box for box in picture.boxes if box.label.startswith("expert ")]
    assert sum(" drops " not in box.label for box in rows) == len(routing.kept)
    assert sum(" drops " in box.label for box in rows) == sum(map(len, routing.arrivals)) - len(routing.kept)
    bars = {box.label: box.height for box in picture.boxes if box.label.startswith("router ")}
    for rank in range(routing.ranks):
        found, part = [bars[f"router {e} of {rank}"] for e in range(routing.ranks)], routing.gradient([rank])
        most = max(map(abs, part))
        tallest = max(found)
        assert found == pytest.approx([abs(value) / (most or 1) * tallest for value in part])


def test_each_arrow_looks_like_one_of_the_key():
    lines = [line for line in experts_picture(ROUTINGS[0]).lines if line.arrow]
    looks = [(line.muted, line.strong) for line in lines]
    assert looks[:3] == [(True, False), (False, False), (False, True)]
    assert set(looks[3:]) <= set(looks[:3])
