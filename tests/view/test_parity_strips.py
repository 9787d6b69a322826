"""Lesson 23's picture: which gradients are rounding, which differ, and how far curves are apart."""

from types import SimpleNamespace

from labkit.view.picture import NARROW
from labkit_content.pictures import parity_strips


def layout(name, losses, gaps, first=""):
    return SimpleNamespace(
        arguments=[f"--{name}"], ranks=1 if name == "one" else 2, losses=losses, norms=losses, gaps=gaps, first=first,
        tolerance=1e-5,
    )  # fmt: skip


def test_each_gradient_that_differs_has_another_colour_and_the_first_is_framed():
    one = layout("one", [2.0, 1.0], {})
    sound = layout("dp", [2.0, 1.0], {"head": 1e-7, "body": 1e-8})
    wrong = layout("pp", [170.0, 85.0], {"head": 1e-7, "body": 84.0, "words": 83.0}, "body")
    picture = parity_strips([one, wrong, sound], "losses")
    boxes = {box.tip: box for box in picture.boxes if box.tip.count(" · ") == 2 and box.width > 20}
    shown = {tip: (box.gpu == 5, box.strong) for tip, box in boxes.items()}
    assert shown["PP · head · 1e-7"] == shown["DP · body · 1e-8"] == (False, False)
    assert shown["PP · body · 84"] == (True, True)
    assert shown["PP · words · 83"] == (True, False)


def test_the_scale_reaches_beyond_the_largest_difference():
    """A curve that is 84 times off must not lie on the line of 1."""
    one, wrong = layout("one", [2.0, 1.0], {}), layout("pp", [170.0, 85.0], {"head": 84.0}, "head")
    picture = parity_strips([one, wrong], "losses")
    assert "10" in {label.text for label in picture.texts if label.x < 420}
    assert "up to 85 times" in picture.description


def test_curves_that_end_in_one_point_have_one_label():
    alike = [layout(name, [2.0, 1.0], {"head": 1e-8}) for name in ("one", "dp", "tp", "pp")]
    names = [label.text for label in parity_strips(alike, "losses").texts]
    assert "all 4" in names
    assert "DP PP TP" in names  # the lens, whose foot stands for all that is smaller
    assert "≤ 1e-9" in names
    assert names.count("TP") == 2


def test_labels_of_close_curves_stand_around_their_ends():
    """They share rows, and no row is pushed far below its points."""
    off = {"pp": 6e-4, "ep": 5e-4, "dp": 4e-4, "fsdp": 4e-4, "tp": 3e-4, "cp": 1.4e-4}
    every = [
        layout("one", [2.0, 1.0], {}),
        *(layout(name, [2.0, 1 + gap], {"head": 1e-8}) for name, gap in off.items()),
    ]
    picture = parity_strips(every, "losses")
    assert picture.width == NARROW  # a phone shows curves, lens and boxes below one another
    ends = {box.label.split()[0]: box.y for box in picture.boxes if " 2 difference" in box.label}
    labels = [label for label in picture.texts if label.x > 260 and "P" in label.text and 320 < label.y < 560]
    assert sorted(" ".join(label.text for label in labels).split()) == sorted(name.upper() for name in off)
    assert all(abs(label.y - ends[name]) < 20 for label in labels for name in label.text.split())
    heights = sorted(label.y for label in labels)
    assert all(lower - upper >= 12 for upper, lower in zip(heights, heights[1:], strict=False))
