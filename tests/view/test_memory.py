"""The picture of the memory of the GPUs."""

import pytest

import labkit
from labkit.base.units import bytes_text
from labkit.plans.footprint import KINDS
from labkit.view.pictures.lanes import memory_picture
from labkit.view.svg import to_svg

MEBI = 2**20


def memory(gpus, capacity=None, rows=100):
    return labkit.data_parallel_memory(
        rows, gpus, weights=512 * MEBI, activations=90 * MEBI, outputs=8 * MEBI, optimizer=1024 * MEBI,
        capacity=capacity,
    )  # fmt: skip


def test_a_byte_is_equally_wide_everywhere_and_kinds_are_stacked_in_order():
    found = memory(3)
    boxes = [box for box in memory_picture(found).boxes if box.label.startswith("cuda:")]
    widths = {box.label: box.width for box in boxes}
    scale = widths["cuda:0 weights"] / found.gpus[0].weights
    for gpu, footprint in enumerate(found.gpus):
        for kind in KINDS:
            assert widths.get(f"cuda:{gpu} {kind}", 0) == pytest.approx(getattr(footprint, kind) * scale)
        lane = [box for box in boxes if box.gpu == gpu]
        assert [box.x + box.width for box in lane[:-1]] == pytest.approx([box.x for box in lane[1:]])
        assert len({box.tint for box in lane}) == len(lane)


def test_the_legend_has_the_colours_of_the_bars():
    picture = memory_picture(memory(3))
    for kind in KINDS:
        bars = {
            (box.gpu, box.tint)
            for box in picture.boxes
            if box.label.startswith("cuda:") and box.label.endswith(kind)
        }
        swatch = {(box.gpu, box.tint) for box in picture.boxes if box.label == f"legend {kind}"}
        assert {gpu for gpu, _ in swatch} == {0, 1, 2}
        assert bars <= swatch


def test_what_does_not_fit_is_said():
    texts = [text.text for text in memory_picture(memory(8, 4096 * MEBI)).texts]
    assert "4.53 GiB, too much" in texts
    assert "capacity 4 GiB" in texts
    assert "every other GPU at most 2.24 GiB" in memory_picture(memory(8)).description
    assert "1 of 8 would run out of memory" in memory_picture(memory(8, 4096 * MEBI)).description
    assert "nothing" in [text.text for text in memory_picture(memory(8, rows=10)).texts]


def test_a_phone_shows_every_number_and_the_capacity_beside_its_bar(language):
    """An explorer is 274 px wide there: at that width words of at least 8 px, each number right above its bar."""
    picture = memory_picture(memory(4, 4096 * MEBI))
    assert 'class="labkit-card labkit-narrow"' in to_svg(picture, panel=True)
    assert min(text.size for text in picture.texts) * 274 / picture.width >= 8
    notes = [text for text in picture.texts if text.anchor == "end"]
    for gpu, (note, found) in enumerate(zip(notes, memory(4).gpus, strict=True)):
        lane = [box for box in picture.boxes if box.label.startswith(f"cuda:{gpu} ")]
        assert note.text.startswith(bytes_text(found.total))
        assert 0 < lane[0].y - note.y < 6
    (limit,) = {line.x1 for line in picture.lines}
    scale = lane[0].width / found.weights
    assert limit == pytest.approx(lane[0].x + 4096 * MEBI * scale)
    assert len(picture.lines) == 4


def test_only_footprints_are_drawn():
    with pytest.raises(TypeError, match="data for cuda:0 must be a Footprint, got 3"):
        labkit.draw_memory([3])
    with pytest.raises(ValueError, match="data must be a Footprint for each GPU"):
        labkit.draw_memory([])


def test_gradients_and_the_optimizers_state_can_be_told_apart():
    """Both are pale, and rarely wide enough for their names: the one is drawn through, and so in the legend."""
    picture = labkit.MemoryExplorer(rows=64, gpus=4).make_picture()
    drawn = {box.label for box in picture.boxes if box.hatched}
    assert drawn == {"legend gradients", *(f"cuda:{gpu} gradients" for gpu in range(4))}
    assert "cuda:0 optimizer" in {box.label for box in picture.boxes}
