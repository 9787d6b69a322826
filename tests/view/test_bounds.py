"""Whatever shows itself stays small: beyond what can be read it is told in a line, and the picture says so."""

import itertools

import pytest

import labkit
from labkit.base.language import using
from labkit.plans.footprint import Occupancy
from labkit.trace.events import Event
from labkit.trace.trace import Trace
from labkit.view.pictures.call_flow import flow_picture
from labkit.view.pictures.lanes import batches_picture, memory_picture, occupancy_picture, split_picture
from labkit.view.pictures.ring_steps import all_reduce_picture
from labkit.view.pictures.shape_blocks import shapes_picture
from labkit.view.pictures.timeline import timeline_picture
from labkit.view.svg import to_svg


def steps(gpus, times):
    """Computing and data arriving, there and back, in turn on every GPU: a microsecond each."""
    return Trace(
        [
            Event(phase, f"cuda:{gpu}", source="cpu", direction=direction, start=at * 1e-6, seconds=1e-6)
            for at in range(times)
            for gpu in range(gpus)
            for phase, direction in [
                (("parallel_apply", "copy")[at % 2], ("forward", "backward")[at // 2 % 2])
            ]
        ]
    )


MEMORY = labkit.data_parallel_memory(
    3000, 1024, weights=2**30, activations=2**28, outputs=2**20, optimizer=2**31, capacity=2**30
)
# What is shown, its picture, and what is said of that which is not drawn.
CASES = [
    (labkit.split(10, 1024), split_picture, "cuda:10–cuda:1023: 1014 GPUs idle", "1014 块 GPU 空闲"),
    (labkit.split(1500, 1000), split_picture, "cuda:12–cuda:746: 735 more GPUs with 2 rows each", "还有 735 块 GPU"),
    (labkit.split(0, 1024), split_picture, "cuda:0–cuda:1023: 1024 GPUs idle", "1024 块 GPU 空闲"),
    (labkit.split(10**12, 1024), split_picture, "1009 more GPUs", "还有 1009 块 GPU"),
    (labkit.batches(10**9, 1), batches_picture, "… 999999989 more batches like these …", "还有 999999989 个"),
    (labkit.batches(10**9, 2000, gpus=1024), batches_picture, "… 499989 more batches", "还有 499989 个"),
    (labkit.batches(10**30 + 1, 2), batches_picture, "more batches like these", "个这样的批次"),
    (labkit.ring_all_reduce(1024), all_reduce_picture, "1016 more ranks … (a column: 17 chunks)", "一列：17 个分块"),
    (labkit.ring_all_reduce(1024, 700), all_reduce_picture, "1016 more ranks", "还有 1016 个 rank"),
    (MEMORY, memory_picture, "GPUs, at most 2.75 GiB each, 988 too much", "最多各占 2.75 GiB，其中 988 块超出"),
    (Occupancy((2**20,) * 1024, (2**34,) * 1024), occupancy_picture, "GPUs, 1009 MiB in use", "共用去 1009 MiB"),
    (steps(8, 4000), timeline_picture, "(each bar sums 64.5 µs)", "每 64.5 µs 累加成一段"),
    (steps(200, 20), timeline_picture, "cuda:39 – cuda:195: 157 more devices", "还有 157 个设备"),
    (labkit.split(3000, 1024), flow_picture, "994 more GPUs with [3, 5] each", "还有 994 块 GPU，各得 [3, 5]"),
    ((3000, 7), lambda shape: shapes_picture(shape, 1024), "17 × [3, 7]", "17 × [3, 7]"),
]  # fmt: skip


@pytest.mark.parametrize(("data", "picture", "en", "zh"), CASES)
def test_it_stays_small_and_says_that_it_is_shortened(data, picture, en, zh, sound):
    for language, words in (("en", en), ("zh", zh)):
        with using(language):
            drawn = picture(data)
        assert len(drawn.boxes) <= 2010
        assert len(drawn.lines) <= 300
        assert len(drawn.texts) <= 300
        assert len(to_svg(drawn)) < 450_000
        assert len(drawn.description) < 1000
        assert any(words in text.text for text in drawn.texts)
        if len(drawn.texts) < 100:
            sound(drawn)
    assert len(repr(data)) < 1000


def test_what_can_be_read_is_not_shortened():
    assert "more" not in to_svg(split_picture(labkit.split(64, 64)))
    assert len([box for box in shapes_picture((64, 3), 64).boxes if "glued" in box.label]) == 64
    trace = steps(8, 100)
    assert len(timeline_picture(trace).boxes) == len(trace) + 3  # those of the legend
    assert not [text for text in timeline_picture(trace).texts if "each bar" in text.text]


def test_bars_that_are_added_up_are_as_long_as_all_of_them():
    bars = [box for box in timeline_picture(steps(8, 4000)).boxes if box.label.startswith("cuda:3")]
    for kind in ("parallel_apply forward", "parallel_apply backward", "copy forward", "copy backward"):
        found = [box for box in bars if kind in box.label]
        assert sum(int(box.label.partition("×")[2] or 1) for box in found) == 1000
        assert sum(box.width for box in found) == pytest.approx((720 - 76 - 36) / 4)
    computing = sorted((box.x, box.x + box.width) for box in bars if "parallel_apply" in box.label)
    assert all(one[1] <= other[0] + 0.2 for one, other in itertools.pairwise(computing))


def test_a_piece_of_a_bar_that_stands_for_several_gpus_says_so_and_has_all_their_rows():
    picture = split_picture(labkit.split(10**6, 1024))
    bar = [box for box in picture.boxes if box.y == 30]
    assert bar[0].label == "cuda:0–cuda:16 rows 0..16608"
    assert sum(box.width for box in bar) == pytest.approx(720 - 76 - 126)


def test_a_cell_that_stands_for_several_chunks_is_filled_as_far_as_they_are_on_average():
    ring = labkit.ring_all_reduce(128, 64)
    (first, *_) = [box for box in all_reduce_picture(ring).boxes if box.gpu == 0]
    assert first.label == "chunks 0 to 2"
    share = sum(len(ring.summed_ranks(64, 0, chunk)) for chunk in range(3)) / 3 / 128
    assert first.height == pytest.approx(24 * share)
