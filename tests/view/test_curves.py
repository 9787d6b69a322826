"""The picture of the losses of several trainings."""

import pytest

import labkit
from labkit.view.pictures.charts import TALL, TOP, curves_picture

LOSSES = {
    "one_gpu": [1.37, 0.65, 0.5],
    "data_parallel": [1.37, 0.65, 0.5],
    "mean_of_means": [1.37, 0.8, 0.78],
}


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("losses", [LOSSES, {"mine": [0.0]}, {"one": [1e-9, 0], "two": [1e6, 2]}])
def test_nothing_of_the_curves_is_clipped_and_nothing_overlaps(losses, language, sound):
    labkit.set_language(language)
    sound(curves_picture(labkit.Curves(**losses)))


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


def test_losses_that_do_not_fit_are_named():
    assert repr(labkit.Curves(mine=[2, 1])) == "mine: 2.00 → 1.00"
    with pytest.raises(ValueError, match="equally many losses, one at least; got one: 2, two: 1"):
        labkit.Curves(one=[1, 2], two=[1])
    for none in ({}, {"one": []}):
        with pytest.raises(ValueError, match="one at least"):
            labkit.Curves(**none)
    for odd in ("nan", "inf"):
        with pytest.raises(ValueError, match=f"the losses of two must be finite, that of step 1 is {odd}"):
            labkit.Curves(one=[1, 1], two=[1, float(odd)])
