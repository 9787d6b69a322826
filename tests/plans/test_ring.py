"""The ring and the star: what each rank holds, against sums really taken, and how much each rank sends."""

from fractions import Fraction

import pytest

import labkit

ALL = range(1, 17)
WAYS = (labkit.ring_all_reduce, labkit.star_all_reduce)


@pytest.mark.parametrize("ranks", ALL)
@pytest.mark.parametrize("way", WAYS)
def test_the_steps_carried_out_with_numbers_leave_the_sum_everywhere(way, ranks):
    ring = way(ranks)
    values = [[10 ** (rank % 9) * (chunk + 1) for chunk in range(ranks)] for rank in range(ranks)]
    wanted = [sum(column) for column in zip(*values, strict=True)]
    for step in range(1, ring.steps + 1):
        for send, part in [(send, values[send.source][send.chunk]) for send in ring.sends(step)]:
            values[send.target][send.chunk] = part + send.adds * values[send.target][send.chunk]
    assert values == [wanted] * ranks


@pytest.mark.parametrize("ranks", ALL)
def test_no_gradient_is_added_twice_and_each_rank_finishes_one_chunk(ranks):
    ring = labkit.ring_all_reduce(ranks)
    for step in range(1, ranks):
        before = ring.chunk_sums(step - 1)
        for send in ring.sends(step):
            assert not before[send.source][send.chunk] & before[send.target][send.chunk]
    middle = ring.chunk_sums(ranks - 1)
    assert [sum(len(parts) == ranks for parts in chunks) for chunks in middle] == [1] * ranks


@pytest.mark.parametrize("ranks", ALL)
@pytest.mark.parametrize("way", WAYS)
def test_what_is_held_is_what_was_held_and_what_was_sent(way, ranks):
    ring = way(ranks)
    held = [[{rank} for _ in range(ranks)] for rank in range(ranks)]
    assert ring.chunk_sums(0) == tuple(map(tuple, held))
    for step in range(1, ring.steps + 1):
        for send, part in [(send, held[send.source][send.chunk]) for send in ring.sends(step)]:
            held[send.target][send.chunk] = part | (held[send.target][send.chunk] if send.adds else set())
        assert ring.chunk_sums(step) == tuple(map(tuple, held))


@pytest.mark.parametrize("ranks", ALL)
def test_each_rank_sends_one_chunk_to_the_next_in_every_step(ranks):
    ring = labkit.ring_all_reduce(ranks)
    assert ring.steps == ring.chunks_sent == 2 * (ranks - 1)
    for step in range(1, ring.steps + 1):
        sends = ring.sends(step)
        assert [send.source for send in sends] == list(range(ranks))
        assert all(send.target == (send.source + 1) % ranks for send in sends)


@pytest.mark.parametrize("ranks", ALL)
@pytest.mark.parametrize("way", WAYS)
def test_what_the_busiest_link_carries_is_what_was_sent_over_it(way, ranks):
    plan, links = way(ranks), {}
    for step in range(1, plan.steps + 1):
        times = {}
        for send in plan.sends(step):  # of a star, all is through one link of rank 0, in or out
            link = send.source if way is WAYS[0] else send.target == 0
            times[link] = times.get(link, 0) + 1
        assert plan.time(step) - plan.time(step - 1) == Fraction(max(times.values()), ranks)
        links = {link: links.get(link, 0) + times.get(link, 0) for link in links | times}
    assert plan.carried == Fraction(max(links.values(), default=0), ranks)
    assert plan.carried == (Fraction(2 * (ranks - 1), ranks) if way is WAYS[0] else ranks - 1)


@pytest.mark.parametrize(("arguments", "error", "text"), [
    ((0,), ValueError, "ranks must be from 1 to 1024, got 0"),
    (("four",), TypeError, "ranks must be a whole number, got 'four'"),
    ((4, 7), ValueError, "step must be from 0 to 6, got 7"),
    ((4, -1), ValueError, "step must be from 0 to 6, got -1"),
])  # fmt: skip
def test_a_wrong_argument_is_named(arguments, error, text):
    for way in WAYS:
        with pytest.raises(error, match=text):
            way(*arguments)


def test_it_says_itself_in_one_line():
    assert (
        str(labkit.ring_all_reduce(4))
        == "ring all-reduce over 4 ranks: 6 steps, each rank sends 6/4 of its gradient"
    )
    assert (
        str(labkit.star_all_reduce(4))
        == "all-reduce through rank 0 over 4 ranks: 6 steps, rank 0 receives and sends 3 gradients"
    )
