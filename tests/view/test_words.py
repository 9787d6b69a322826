"""What the pictures say: a whole sentence in each language for a fixed case, which the SVG gives to all readers."""

import xml.etree.ElementTree as ET

import pytest

import labkit
from labkit.base.language import using
from labkit.plans.footprint import Occupancy
from labkit.trace.events import Event
from labkit.trace.trace import Trace
from labkit.view.figure import paint
from labkit.view.picture import Box, Label, Line, Sketch
from labkit.view.pictures.call_flow import flow_picture
from labkit.view.pictures.shape_blocks import shapes_picture
from labkit.view.pictures.timeline import timeline_picture
from labkit.view.svg import to_svg

GIB = 2**30
# Two GPUs start at the same time: the busiest computes for 3 of 4 ms.
STEP = Trace(
    [
        Event("scatter", "cuda:0", source="cpu", nbytes=1500, seconds=0.001),
        Event("parallel_apply", "cuda:0", start=0.001, seconds=0.002),
        Event("parallel_apply", "cuda:1", start=0.001, seconds=0.003),
    ]
)
# What is shown, or its picture, and facts of its sentence in each language.
SHOWN = [
    (labkit.split(30, 8), "ceil(30/8) = 4 rows, so 8 of 8 work (4, 4, 4, 4, 4, 4, 4, 2)", "8 块中有 8 块工作"),
    (labkit.split(10, 8), "= 2 rows, so 5 of 8 work (2, 2, 2, 2, 2); cuda:5–cuda:7 are idle", "⌈10/8⌉ = 2 行"),
    (labkit.batches(100, 30, gpus=8), "3 full batches of 30 and a short one of 10; each is split over 8", "给 8 块"),
    (labkit.batches(40, 30, drop_last=True), "1 full batch of 30; the last 10 rows are dropped", "最后 10 行丢弃"),
    (labkit.ring_all_reduce(4, 3), "After step 3 of 6. Ring", "第 3 步之后（共 6 步）。4 个 rank"),
    (labkit.ring_all_reduce(4, 3), "after 6 all of it; each rank sends 1.5 gradients in all", "1.5 份"),
    (labkit.star_all_reduce(4, 3), "rank 0 receives 3 whole gradients", "3 步之后，rank 0 有了总和；6 步之后"),
    (labkit.data_parallel_memory(8, 4, weights=GIB, optimizer=2 * GIB, capacity=4 * GIB),
     "cuda:0 holds 5 GiB, every other GPU at most 2 GiB; 1 of 4 would run out", "4 块 GPU 中有 1 块显存不够"),
    (Occupancy((GIB, 0), (4 * GIB, 4 * GIB)), "2 simulated GPUs, 1 GiB in use.", "2 块模拟 GPU，显存共用去 1 GiB。"),
    (STEP, "3 events on 3 devices in 4 ms; the busiest GPU computes for 75% of it; 1,500 bytes", "历时 4 ms"),
    (timeline_picture(STEP, 0.0015), "At 1.5 ms: compute (cuda:0, cuda:1).", None),
    (flow_picture(labkit.split(10, 3)), "[10, 5] on cuda:0 is scattered to 3 GPUs; the replicas' outputs are gathered "
     "to [10, 2] on cuda:0", None),
    (labkit.split(49, 8), "cuda:7 is idle.", "cuda:7 空闲"),
    (flow_picture(labkit.split(10, 8), 1), "Scatter: the batch is cut along dimension 0, and 5 GPUs get a piece each "
     "(3 idle)", None),
    (flow_picture(labkit.split(10, 1), 7), "With one GPU nothing is copied in this step", None),
    (shapes_picture((65, 32, 5530), 2, batch_dim=1), "to [130, 16, 5530]. The batch is in dimension 1, so the result "
     "should be [65, 32, 5530], but no error", None),
    (shapes_picture((65, 33), 2, batch_dim=1), "its pieces differ in size: gather fails", None),
]  # fmt: skip


@pytest.mark.parametrize(("shown", "en", "zh"), SHOWN)
def test_what_is_shown_says_what_is_to_be_seen(shown, en, zh):
    for language, words in (("en", en), ("zh", zh)):
        if words is not None:
            with using(language):
                root = ET.fromstring(to_svg(shown) if zh is None else shown._repr_svg_())
            assert words in root.get("aria-label")
            assert root.find("{http://www.w3.org/2000/svg}title").text == root.get("aria-label")


def test_in_a_picture_no_english_word_is_left_among_chinese_ones():
    with using("zh"):
        over = labkit.data_parallel_memory(8, 4, weights=GIB, optimizer=2 * GIB, capacity=4 * GIB)
        texts = {el.text for el in ET.fromstring(over._repr_svg_()).iter() if el.tag.endswith("text")}
        assert {"显存容量 4 GiB", "5 GiB，超出", "2 GiB", "权重", "优化器状态"} <= texts
        ring = ET.fromstring(labkit.ring_all_reduce(4, 3)._repr_svg_())
        notes = [el.text for el in ring.iter() if el.tag.endswith("text") and " 的分块" in el.text]
        assert notes == [
            "加上 rank 3 的分块 1",
            *(f"加上 rank {k - 1} 的分块 {(k + 1) % 4}" for k in (1, 2, 3)),
        ]
        ring = ET.fromstring(labkit.ring_all_reduce(2, 2)._repr_svg_())
        notes = [el.text for el in ring.iter() if el.tag.endswith("text") and " 的分块" in el.text]
        assert notes == ["换成 rank 1 的分块 0", "换成 rank 0 的分块 1"]


def test_signs_that_mean_something_in_svg_are_kept_as_text():
    sketch = Sketch()
    sketch.add(Label(1, 10, 'a<b & "c"'), Line(0, 0, 1, 1))
    root = ET.fromstring(to_svg(sketch.picture(20, 'less: a<b & "c"')))
    assert [el.text for el in root.iter() if el.tag.endswith("text")] == ['a<b & "c"']
    assert root.get("aria-label") == 'less: a<b & "c"'


def test_a_card_is_light_where_nothing_is_known_and_can_be_dark():
    """What a browser does with it is seen in tests/browser."""
    picture = Sketch().picture(20, "a card")
    root = ET.fromstring(to_svg(picture, panel=True))
    (paper,) = [el for el in root.iter() if el.get("class") == "labkit-paper"]
    assert (root.get("color"), root.get("fill"), paper.get("fill")) == ("#1f2328", "currentColor", "#ffffff")
    assert [paper.get(side) for side in ("width", "height")] == [
        root.get(side) for side in ("width", "height")
    ]
    assert "labkit-card" not in to_svg(picture)


def test_a_line_is_painted_once_under_the_boxes_or_over_them():
    sketch = Sketch()
    sketch.add(Line(0, 1, 9, 1), Box(0, 0, 9, 9, 0), Line(0, 2, 9, 2, over=True))
    picture = sketch.picture(20, "two lines")
    painted = [el for el in ET.fromstring(to_svg(picture)) if el.tag.endswith(("line", "rect"))]
    assert [el.get("y1", "box") for el in painted] == ["1", "box", "2"]
    import matplotlib.pyplot as plt

    ax = paint(lambda: picture)
    heights = {line.get_ydata()[0]: line.get_zorder() for line in ax.lines}
    assert heights[1] < ax.patches[0].get_zorder() < heights[2]
    plt.close("all")


def test_the_edge_of_a_strong_box_is_heavy_and_that_of_another_pale():
    sketch = Sketch()
    sketch.add(Box(0, 0, 9, 9), Box(10, 0, 9, 9, strong=True))
    root = ET.fromstring(to_svg(sketch.picture(20, "two boxes")))
    edges = [
        (el.get("stroke-width"), el.get("stroke-opacity")) for el in root.iter() if el.tag.endswith("rect")
    ]
    assert edges == [(None, "0.35"), ("2", None)]


def test_a_dashed_box_is_dashed_in_both_paintings():
    sketch = Sketch()
    sketch.add(Box(0, 0, 9, 9, 0), Box(10, 0, 9, 9, dashed=True))
    picture = sketch.picture(20, "two boxes")
    boxes = [el for el in ET.fromstring(to_svg(picture)) if el.tag.endswith("rect")]
    assert ["stroke-dasharray" in el.attrib for el in boxes] == [False, True]
    import matplotlib.pyplot as plt

    assert [patch.get_linestyle() for patch in paint(lambda: picture).patches] == ["-", "--"]
    plt.close("all")


@pytest.mark.parametrize(("end", "corners"), [
    ((50, 0), ((50, 0), (43, 3.5), (43, -3.5))),
    ((-50, 0), ((-50, 0), (-43, -3.5), (-43, 3.5))), ((0, 50), ((0, 50), (-3.5, 43), (3.5, 43))),
    ((30, -40), ((30, -40), (28.6, -32.3), (23, -36.5))),
])  # fmt: skip
def test_the_head_of_an_arrow_ends_where_the_line_does_and_opens_backwards(end, corners):
    assert [pytest.approx(corner) for corner in Line(0, 0, *end).head()] == list(corners)
