"""The pictures of a step on more and more GPUs, and of losses."""

import pytest

import labkit
from labkit.cost import PROFILES, all_reduce_seconds, predict_scaling
from labkit.cost.published import BERT
from labkit.view.pictures.charts import TALL, TOP, curves_picture, scaling_picture
from labkit_content.pictures import StepTimes


def test_marks_stand_at_their_values():
    found = predict_scaling(BERT, PROFILES["v100-dlperf"], (1, 2, 4, 8))
    marks = {box.label: box for box in scaling_picture(found).boxes}
    x = [marks[f"ddp {n} training step, ms"].x for n in found.counts]
    assert x[1] - x[0] == pytest.approx(x[3] - x[2])  # a doubling is equally wide
    heights = [marks[f"data_parallel {n} efficiency, % of perfect"].y for n in found.counts]
    shares = found.efficiency("data_parallel")
    slope = (heights[3] - heights[0]) / (shares[3] - shares[0])
    assert [heights[0] + slope * (share - shares[0]) for share in shares] == pytest.approx(heights)


def test_dataparallel_ends_where_the_machine_ends():
    picture = scaling_picture(predict_scaling(BERT, PROFILES["v100-dlperf"], (4, 8, 16, 32)))
    labels = [box.label for box in picture.boxes if box.label.endswith("efficiency, % of perfect")]
    assert [label.split()[1] for label in labels if label.startswith("data_parallel")] == ["4", "8"]
    assert [label.split()[1] for label in labels if label.startswith("ddp")] == ["4", "8", "16", "32"]
    assert "DataParallel cannot leave one machine" in picture.description


def looks(picture):
    """How the lines that are no grid look, and the marks on them, by the name of the method."""
    lines = {(line.dashed, line.strong) for line in picture.lines if not line.muted}
    marks = {box.label.split()[0]: box.round for box in picture.boxes if "legend" not in box.label}
    return lines, marks


def test_lines_are_told_apart_without_colour_and_have_their_name_at_their_end():
    picture = scaling_picture(predict_scaling(BERT, PROFILES["v100-dlperf"], (1, 2, 4, 8)))
    lines, marks = looks(picture)
    assert lines == {(True, False), (False, False), (False, True)}
    assert marks == {"ddp": True, "data_parallel": False}
    for method, name in (("ddp", "DDP"), ("data_parallel", "DataParallel")):
        for axis in ("training step, ms", "efficiency, % of perfect"):
            (mark,) = [box for box in picture.boxes if box.label == f"{method} 8 {axis}"]
            beside = [t for t in picture.texts if t.text == name and 0 < t.x - mark.x - mark.width < 9]
            assert len(beside) == 1
            assert abs(beside[0].y - mark.y) < 40


@pytest.mark.parametrize("rows", [1, 32, 128])
@pytest.mark.parametrize("profile", ["v100-nvlink", "v100-dlperf", "h200"])
def test_no_line_goes_through_the_name_of_one_that_ends_before_it(rows, profile):
    """DataParallel ends with the machine; DDP goes on, often at nearly the same height."""
    for most in (16, 64, 4096):
        counts = [2**k for k in range(13) if 2**k <= most]
        picture = scaling_picture(predict_scaling(BERT, PROFILES[profile], counts, rows=rows))
        names = [text for text in picture.texts if text.text == "DataParallel" and text.size < 12]
        assert len(names) == 2
        for name in names:
            for line in picture.lines:
                for x in (name.x + 5 * step for step in range(13)):
                    if line.x1 <= x <= line.x2:
                        y = line.y1 + (line.y2 - line.y1) * (x - line.x1) / (line.x2 - line.x1)
                        assert not name.y - 8 < y < name.y + 1, (name, line)


def test_where_there_is_no_network_gpus_end_with_the_machine():
    assert all_reduce_seconds(1000, PROFILES["titan-pcie"], 2) > 0
    with pytest.raises(ValueError, match=r"gpus must be at most 2, the GPUs of 2 × TITAN RTX, PCIe,"):
        all_reduce_seconds(1000, PROFILES["titan-pcie"], 4)
    with pytest.raises(ValueError, match="which has no network, got 16"):
        labkit.predict_scaling(BERT, labkit.Hardware("mine", 1e9, 1e9), (8, 16))


LOSSES = {
    "one_gpu": [1.37, 0.65, 0.5], "data_parallel": [1.37, 0.65, 0.5], "mean_of_means": [1.37, 0.8, 0.78],
}  # fmt: skip


def test_the_steps_under_curves_are_round_numbers_and_the_last():
    picture = curves_picture(labkit.Curves(one=[1.0] * 40))
    foot = max(text.y for text in picture.texts if text.text == "0")
    under = [text.text for text in picture.texts if text.y == foot]
    assert under == ["0", "5", "10", "15", "20", "25", "30", "35", "39"]


def test_equal_curves_lie_on_one_another_and_each_can_be_seen():
    picture = curves_picture(labkit.Curves(**LOSSES))
    marks = {box.label: box for box in picture.boxes}
    foot, unit = TOP + TALL, TALL / 1.6
    for name in ("data_parallel", "mean_of_means"):
        for step, loss in enumerate(LOSSES[name]):
            box = marks[f"{name} {step} loss"]
            assert foot - (box.y + box.height / 2) == pytest.approx(loss * unit)
    steps = [marks[f"data_parallel {step} loss"].x for step in range(3)]
    assert steps[2] - steps[1] == pytest.approx(steps[1] - steps[0])  # a step is as wide as any other
    # The thick line is one GPU's (the first is the legend's); the discs on it are DataParallel's.
    heights = [foot - line.y2 for line in picture.lines if line.strong][1:]
    assert heights == pytest.approx([loss * unit for loss in LOSSES["one_gpu"][1:]])
    assert picture.description.startswith("Loss at each step. one GPU: from 1.37 to 0.50; DataParallel: from")


@pytest.mark.parametrize(
    ("last", "ends"),
    [((0.5, 0.5, 0.78), ["0.78", "0.50 (both)"]), ((0.5, 0.5, 0.5), ["0.50 (all 3)"])],
)
def test_curves_that_end_together_have_one_label(last, ends):
    picture = curves_picture(labkit.Curves(**{f"curve{at}": [1.37, loss] for at, loss in enumerate(last)}))
    assert [text.text for text in picture.texts if text.text[:3] in ("0.5", "0.7", "0.9")] == ends


def test_losses_that_do_not_fit_are_named():
    assert repr(labkit.Curves(mine=[2, 1])) == "mine: 2.00 → 1.00"
    with pytest.raises(ValueError, match="the same number of losses, at least one; got one: 2, two: 1"):
        labkit.Curves(one=[1, 2], two=[1])
    for none in ({}, {"one": []}):
        with pytest.raises(ValueError, match="at least one"):
            labkit.Curves(**none)
    for odd in ("nan", "inf"):
        with pytest.raises(ValueError, match=f"the losses of two must be finite, that of step 1 is {odd}"):
            labkit.Curves(one=[1, 1], two=[1, float(odd)])


def test_times_of_a_step_are_drawn_with_the_fastest_count(language, sound):
    times = StepTimes({0.5: [0.097, 0.054, 0.031], 8: [0.097, 0.069, 0.081]})
    sound(picture := times.picture())
    texts = [text.text for text in picture.texts]
    ends = {
        "en": ["8 ms: fastest on 2", "0.5 ms: fastest on 4"],
        "zh": ["8 ms：2 块最快", "0.5 ms：4 块最快"],
    }
    assert set(ends[language]) <= set(texts)
    assert {"1", "2", "4"} <= set(texts)
    assert "97.0, 69.0, 81.0" in repr(times)
