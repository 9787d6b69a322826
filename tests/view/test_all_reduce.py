"""The picture of a ring all-reduce: a lane for each rank, a stripe for each gradient in a sum, nothing outside."""

import pytest

import labkit
from labkit.view.pictures.ring_steps import all_reduce_picture


def stripes(picture):
    """(rank, chunk) -> the stripes over it, panel after panel."""
    found = {}
    for box in picture.boxes:
        if " from " in box.label:
            _, rank, _, first, last, _, _ = box.label.split()
            for chunk in range(int(first), int(last) + 1):
                found.setdefault((int(rank), chunk), []).append(box)
    return found


@pytest.mark.parametrize("step", range(7))
@pytest.mark.parametrize("way", [labkit.ring_all_reduce, labkit.star_all_reduce])
def test_a_stripe_stands_for_each_gradient_in_the_sum(way, step):
    plan = way(4, step)
    drawn = stripes(all_reduce_picture(plan))
    held = plan.chunk_sums(step)
    assert {at: sorted(box.gpu for box in boxes) for at, boxes in drawn.items()} == {
        (rank, chunk): sorted(held[rank][chunk]) for rank in range(4) for chunk in range(4)
    }


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_the_stripes_of_a_finished_sum_lie_in_their_cell_one_above_the_other(ranks):
    picture = all_reduce_picture(labkit.ring_all_reduce(ranks, 2 * (ranks - 1)))
    cells = {box.label.removesuffix(" received"): box for box in picture.boxes if "chunk " in box.label}
    for (rank, chunk), boxes in stripes(picture).items():
        cell = cells[f"rank {rank} chunk {chunk}"]
        for box in boxes:
            assert cell.y - 1e-9 <= box.y <= box.y + box.height <= cell.y + cell.height + 1e-9
            assert box.x <= cell.x + 1e-9
            assert cell.x + cell.width <= box.x + box.width + 1e-9
        assert len({box.y for box in boxes}) == ranks


def test_a_finished_sum_fills_its_cell_and_half_a_sum_half_of_it():
    for ranks, step, share in ((2, 0, 1 / 2), (2, 2, 1), (16, 0, 1 / 16), (16, 30, 1)):
        picture = all_reduce_picture(labkit.ring_all_reduce(ranks, step))
        boxes = [box for box in picture.boxes if "chunk" in box.label]
        filled = sum(box.width * box.height for box in boxes if box.gpu is not None)
        cells = sum(box.width * box.height for box in boxes if box.gpu is None)
        assert filled / cells == pytest.approx(share)


def test_without_a_step_the_beginning_the_middle_and_the_end_are_drawn():
    texts = [text.text for text in all_reduce_picture(labkit.ring_all_reduce(4)).texts if text.bold]
    assert texts == ["at the start", "after step 3 of 6", "after step 6 of 6"]


def test_one_step_says_who_got_what_and_whether_it_is_added():
    def notes(step):
        return [
            text.text
            for text in all_reduce_picture(labkit.ring_all_reduce(4, step)).texts
            if "of rank" in text.text
        ]

    assert notes(1)[1] == "adds chunk 0 of rank 0"
    assert notes(6)[1] == "gets chunk 3 of rank 0"
    received = [
        box.label for box in all_reduce_picture(labkit.ring_all_reduce(4, 1)).boxes if "received" in box.label
    ]
    assert received == [f"rank {rank} chunk {(rank - 1) % 4} received" for rank in range(4)]


def sent(picture):
    """Who sends to whom, by the arrows between the ranks' boxes."""
    nodes = {
        int(b.label[5:]): (b.x + b.width / 2, b.y + b.height / 2)
        for b in picture.boxes
        if b.label[:5] == "node "
    }

    def nearest(x, y):
        return min(nodes, key=lambda rank: (nodes[rank][0] - x) ** 2 + (nodes[rank][1] - y) ** 2)

    return {(nearest(line.x1, line.y1), nearest(line.x2, line.y2)) for line in picture.lines if line.arrow}


@pytest.mark.parametrize("step", range(15))
def test_arrows_go_round_the_ring_and_through_the_middle_of_the_star(step):
    around = {(rank, (rank + 1) % 8) for rank in range(8)}
    assert sent(all_reduce_picture(labkit.ring_all_reduce(8, step))) == around
    through = {(step, 0)} if step < 8 else {(0, step - 7)}
    star = all_reduce_picture(labkit.star_all_reduce(8, step))
    assert sent(star) == (through if step else set())
    middles = {b.label: (b.x + b.width / 2, b.y + b.height / 2) for b in star.boxes if b.label[:5] == "node "}
    far = {
        round(sum((a - b) ** 2 for a, b in zip(middles[name], middles["node 0"], strict=True)))
        for name in middles
    }
    assert far == {0, 84**2}


@pytest.mark.parametrize("way", [labkit.ring_all_reduce, labkit.star_all_reduce])
@pytest.mark.parametrize("step", [0, 1, 6, 14])
def test_both_run_on_one_clock(way, step):
    plan = way(8, step)
    bars = {
        box.label: box.width for box in all_reduce_picture(plan).boxes if box.label[-5:] in ("whole", " done")
    }
    unit = bars["star whole"] / 14
    assert bars["ring whole"] / unit == pytest.approx(14 / 8)
    now = step / 8 if way is labkit.ring_all_reduce else step
    done = {"ring done": min(now, 14 / 8), "star done": now}
    assert {name: bars.get(name, 0) / unit for name in done} == pytest.approx(done)


def test_a_phone_shows_all_chunks_of_a_step_and_what_a_star_takes_is_explained():
    picture = all_reduce_picture(labkit.ring_all_reduce(4, 2))
    assert max(box.x + box.width for box in picture.boxes if "chunk " in box.label) <= 290
    assert any("takes in 3, then sends 3" in text.text for text in picture.texts)


def test_of_many_ranks_the_first_and_the_last_are_drawn():
    texts = [text.text for text in all_reduce_picture(labkit.ring_all_reduce(64)).texts]
    assert [text for text in texts if text.startswith("rank ")] == [
        *(f"rank {k}" for k in range(7)),
        "rank 63",
    ]
    assert "… 56 more ranks …" in texts


def test_of_very_many_ranks_some_stand_on_the_circle():
    for way in (labkit.ring_all_reduce, labkit.star_all_reduce):
        picture = all_reduce_picture(way(1000, 999))
        assert 32 <= len([box for box in picture.boxes if box.label.startswith("node ")]) <= 65
