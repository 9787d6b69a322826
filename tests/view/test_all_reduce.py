"""What is drawn of a ring all-reduce: a lane for each rank, a stripe for each gradient in a sum, nothing outside."""

import matplotlib as mpl
import pytest

import labkit
from labkit.view.pictures.ring_steps import all_reduce_picture

mpl.use("Agg")
CASES = [
    (1, None),
    (1, 0),
    (2, None),
    (2, 1),
    (4, None),
    (4, 0),
    (4, 2),
    (4, 6),
    (8, None),
    (9, 3),
    (16, 30),
    (64, None),
]


@pytest.mark.parametrize(("ranks", "step"), CASES)
@pytest.mark.parametrize("language", ["en", "zh"])
def test_nothing_is_clipped_and_nothing_overlaps(ranks, step, language, sound):
    labkit.set_language(language)
    sound(all_reduce_picture(labkit.ring_all_reduce(ranks, step)))


def stripes(picture):
    """(rank, chunk) -> the colours of its stripes, panel after panel."""
    found = {}
    for box in picture.boxes:
        if " from " in box.label:
            _, rank, _, chunk, _, _ = box.label.split()
            found.setdefault((int(rank), int(chunk)), []).append(box.gpu)
    return found


@pytest.mark.parametrize("step", range(7))
def test_a_stripe_stands_for_each_gradient_in_the_sum(step):
    ring = labkit.ring_all_reduce(4, step)
    drawn = stripes(all_reduce_picture(ring))
    held = ring.held(step)
    assert drawn == {(rank, chunk): sorted(held[rank][chunk]) for rank in range(4) for chunk in range(4)}


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_the_stripes_of_a_finished_sum_lie_in_their_cell_one_above_the_other(ranks):
    picture = all_reduce_picture(labkit.ring_all_reduce(ranks, 2 * (ranks - 1)))
    cells = {box.label.removesuffix(" received"): box for box in picture.boxes if box.gpu is None}
    tops = {}
    for box in picture.boxes:
        if box.gpu is not None:
            cell = cells[box.label.partition(" from ")[0]]
            assert cell.y - 1e-9 <= box.y <= box.y + box.height <= cell.y + cell.height + 1e-9
            tops.setdefault(id(cell), []).append(box.y)
    assert all(len(set(found)) == ranks for found in tops.values())


def test_a_finished_sum_fills_its_cell_and_half_a_sum_half_of_it():
    for ranks, step, share in ((2, 0, 1 / 2), (2, 2, 1), (16, 0, 1 / 16), (16, 30, 1)):
        picture = all_reduce_picture(labkit.ring_all_reduce(ranks, step))
        filled = sum(box.width * box.height for box in picture.boxes if box.gpu is not None)
        cells = sum(box.width * box.height for box in picture.boxes if box.gpu is None)
        assert filled / cells == pytest.approx(share)


def test_without_a_step_the_beginning_the_middle_and_the_end_are_drawn():
    texts = [text.text for text in all_reduce_picture(labkit.ring_all_reduce(4)).texts if text.bold]
    assert texts == ["at first", "after step 3 of 6", "after step 6 of 6"]


def test_one_step_says_who_got_what_and_whether_it_is_added():
    def notes(step):
        return [
            text.text
            for text in all_reduce_picture(labkit.ring_all_reduce(4, step)).texts
            if "of rank" in text.text
        ]

    assert notes(1)[1] == "adds chunk 0 of rank 0"
    assert notes(6)[1] == "takes chunk 3 of rank 0"
    received = [
        box.label for box in all_reduce_picture(labkit.ring_all_reduce(4, 1)).boxes if "received" in box.label
    ]
    assert received == [f"rank {rank} chunk {(rank - 1) % 4} received" for rank in range(4)]


def test_of_many_ranks_the_first_and_the_last_are_drawn():
    texts = [text.text for text in all_reduce_picture(labkit.ring_all_reduce(64)).texts]
    assert [text for text in texts if text.startswith("rank ")] == [
        *(f"rank {k}" for k in range(7)),
        "rank 63",
    ]
    assert "… 56 more ranks …" in texts


def test_the_figure_takes_and_returns_the_axes():
    import matplotlib.pyplot as plt

    _, ax = plt.subplots()
    assert labkit.draw_all_reduce(4, 2, ax=ax) is ax
    assert len(ax.patches) == len(all_reduce_picture(labkit.ring_all_reduce(4, 2)).boxes)
    assert labkit.draw_all_reduce(labkit.ring_all_reduce(4)) is not ax
    plt.close("all")
