"""Charts: the times of a step on more and more GPUs, and losses."""

import pytest

import labkit
from labkit.view.pictures.charts import TALL, TOP, curves_picture
from labkit_content.pictures import StepTimes
from labkit_ranks.pictures.parity_curves import parity_picture


def test_a_doubling_is_equally_wide_and_marks_stand_at_their_values():
    picture = StepTimes({0.5: [0.4, 0.2, 0.1, 0.3], 8: [0.4, 0.3, 0.2, 0.1]}).picture()
    marks = {box.label: box for box in picture.boxes}
    places = [marks[f"8 ms {count} training step, ms"] for count in (1, 2, 4, 8)]
    x, y = [box.x for box in places], [box.y for box in places]
    assert x[1] - x[0] == pytest.approx(x[3] - x[2])
    assert y[1] - y[0] == pytest.approx(y[3] - y[2])


def test_lines_are_told_apart_without_colour_and_have_their_name_at_their_end():
    picture = StepTimes({0.5: [0.4, 0.2], 4: [0.4, 0.3], 8: [0.4, 0.4]}).picture()
    assert {(line.dashed, line.strong) for line in picture.lines if not line.muted} == {
        (False, True), (True, False), (False, False),
    }  # fmt: skip
    marks = {box.label.split()[0]: box.round for box in picture.boxes if "legend" not in box.label}
    assert marks == {"4": True, "8": False}
    for start in (4, 8):
        mark = next(box for box in picture.boxes if box.label == f"{start} ms 2 training step, ms")
        (beside,) = [text for text in picture.texts if text.text.startswith(f"{start} ms: fastest")]
        assert 0 < beside.x - mark.x - mark.width < 9
        assert abs(beside.y - mark.y) < 40


@pytest.mark.parametrize("rest", [0.5, 0.31, 0.3, 0.29, 0.1])
def test_no_line_goes_through_the_name_of_one_that_ends_before_it(rest):
    """A layout that fails in its third step; the others go on, often at nearly the same height."""
    losses = {
        "one": [1.0, 0.5, 0.3, *[rest] * 9],
        "fails": [1.0, 0.5, 0.3],
        "other": [1.0, 0.6, *[rest] * 10],
    }
    picture = parity_picture(losses, "")
    names = [text for text in picture.texts if text.text == "[2]"]
    assert len(names) == 2
    for name in names:
        for line in picture.lines:
            for x in (name.x + 5 * step for step in range(4)):
                if line.x1 <= x <= line.x2:
                    y = line.y1 + (line.y2 - line.y1) * (x - line.x1) / (line.x2 - line.x1)
                    assert not name.y - 8 < y < name.y + 1, (name, line)


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
