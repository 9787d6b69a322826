"""The picture of a split: boxes by device, labels, nothing outside the picture."""

import re

import pytest

from labkit.plans.split import split
from labkit.view.palette import colour, ink
from labkit.view.pictures.lanes import split_picture

CASES = [(30, 8), (10, 8), (9, 4), (0, 3), (1, 1), (128, 64), (5, 64), (1000, 7), (7, 16), (64, 33)]
CASES += [(rows, gpus) for rows in (127, 10_000, 123_456) for gpus in (1, 3, 16, 64)]


@pytest.mark.parametrize(("rows", "gpus"), CASES)
def test_every_gpu_has_a_lane_of_its_own_with_its_rows(rows, gpus):
    plan, picture = split(rows, gpus), split_picture(split(rows, gpus))
    names = [text.text for text in picture.texts if text.text.startswith("cuda:")]
    assert names == [f"cuda:{gpu}" for gpu in range(gpus)]
    lanes = {
        box.gpu: box
        for box in picture.boxes
        if box.gpu is not None
        and box.label.endswith(str(plan.pieces[box.gpu].stop - 1))
        and " rows " in box.label
    }
    scale = {gpu: box.width / plan.rows_by_gpu[gpu] for gpu, box in lanes.items()}
    assert set(lanes) == {gpu for gpu, held in enumerate(plan.rows_by_gpu) if held}
    assert max(scale.values(), default=0) - min(scale.values(), default=0) < 1e-9  # width is rows, everywhere
    idle = [text for text in picture.texts if text.text == "idle"]
    assert len(idle) == len(plan.idle)


@pytest.mark.parametrize(("rows", "gpus"), [(30, 8), (65, 16), (127, 8), (100, 33), (64, 64)])
def test_every_piece_says_its_rows_in_its_box_or_beside_it(rows, gpus):
    picture = split_picture(split(rows, gpus))
    for piece in split(rows, gpus).pieces:
        (box,) = [box for box in picture.boxes if box.label == str(piece)]
        words = f"{piece.start}–{piece.stop - 1}" if piece.rows > 1 else f"{piece.start}"
        (said,) = [t for t in picture.texts if t.text == words and box.y < t.y < box.y + box.height]
        right = box.x + box.width
        if said.gpu is not None:
            assert box.x < said.x < right
        else:
            assert said.x == pytest.approx({"start": right + 4, "end": box.x - 4}[said.anchor])


def test_the_short_piece_is_pointed_out():
    texts = [text.text for text in split_picture(split(30, 8)).texts]
    assert "2 rows, short" in texts
    assert "4 rows" in texts


def test_sixty_four_colours_differ_and_their_text_can_be_read():
    assert len({colour(gpu) for gpu in range(64)}) == 64
    assert all(re.fullmatch("#[0-9A-Fa-f]{6}", colour(gpu)) for gpu in range(64))
    assert ink(0) == "#ffffff"
    assert ink(6) == "#000000"
