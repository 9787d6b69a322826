"""Figures take and return axes, and refuse what they cannot draw, naming the argument."""

import matplotlib as mpl
import matplotlib.pyplot as plt
import pytest

import labkit
from labkit.plans.footprint import Footprint
from labkit.view.palette import colour
from labkit.view.pictures.ring_steps import all_reduce_picture

# A call, a text that it writes, and a label of its patches with their GPUs.
DRAWN = [
    (lambda **ax: labkit.draw_split(10, 8, **ax), "idle", "cuda:4 rows", [4]),
    (lambda **ax: labkit.draw_split(labkit.split(10, 8), **ax), "idle", "cuda:4 rows", [4]),
    (lambda **ax: labkit.draw_batches(100, 30, gpus=3, **ax), "batch 3", "cuda:2 rows", [2] * 4),
    (lambda **ax: labkit.draw_batches(labkit.batches(100, 30), **ax), "batch 3", "cuda:1 rows", []),
    (lambda **ax: labkit.draw_all_reduce(4, 2, **ax), "rank 0", "rank 1 chunk 3 from 0", []),
    (lambda **ax: labkit.draw_all_reduce(labkit.ring_all_reduce(4), **ax), "at the start", "rank 1 chunk 3 from 0", []),
    (lambda **ax: labkit.draw_flow(labkit.split(10, 2), **ax), "[5, 5]", "replica", [0, 1]),
    (lambda **ax: labkit.draw_flow(labkit.split(10, 2), 3, **ax), "[5, 5]", "replica", [0, 1]),
    (lambda **ax: labkit.draw_shapes((65, 32, 5530), 2, batch_dim=1, **ax), "✗ [130, 16, 5530], not [65, 32, 5530]",
     "batch cuda:1", []),
    (lambda **ax: labkit.draw_memory([Footprint(3, 2, 1), Footprint(1)], **ax), "cuda:1", "cuda:1 weights", [1]),
]  # fmt: skip


@pytest.mark.parametrize(("draw", "text", "label", "gpus"), DRAWN)
def test_a_figure_takes_and_returns_the_axes_and_changes_no_setting(draw, text, label, gpus):
    before = mpl.rcParams.copy()
    _, ax = plt.subplots()
    assert draw(ax=ax) is ax
    assert draw() is not ax
    assert mpl.rcParams == before
    assert text in [one.get_text() for one in ax.texts]
    patches = [patch for patch in ax.patches if patch.get_label().startswith(label)]
    assert [mpl.colors.to_hex(patch.get_facecolor()) for patch in patches] == [
        colour(gpu).lower() for gpu in gpus
    ]
    plt.close("all")


def test_every_box_and_arrow_is_painted():
    ring = labkit.ring_all_reduce(4, 2)
    picture = all_reduce_picture(ring)
    painted = labkit.draw_all_reduce(ring).patches
    assert len(painted) == len(picture.boxes) + sum(line.arrow for line in picture.lines)
    plt.close("all")


@pytest.mark.parametrize(("call", "text"), [
    (lambda: labkit.draw_timeline("x"), "data must be what labkit.record"),
    (lambda: labkit.draw_memory(None), "data must be what labkit.data_parallel_memory gives, got None"),
    (lambda: labkit.draw_split(10, 2, ax="q"), "ax must be a matplotlib Axes, got 'q'"),
])  # fmt: skip
def test_the_argument_is_named(call, text):
    with pytest.raises(TypeError, match=text):
        call()
