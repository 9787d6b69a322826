"""The picture of a wrong batch dimension."""

import pytest

import labkit
from labkit.plans.shapes import Cut
from labkit.view.pictures.lanes import inputs_picture
from labkit.view.pictures.shape_blocks import gathered_output, shapes_picture

CRNN = (65, 32, 5530)


def test_the_crnn_is_drawn_wrong_beside_right():
    picture = shapes_picture(CRNN, 2, batch_dim=1)
    texts = [text.text for text in picture.texts]
    assert "✗ [130, 16, 5530], not [65, 32, 5530]" in texts
    assert "✓ [32, 65, 5530]" in texts
    assert "cuda:1 [65, 16, 5530]" in texts
    assert "cuda:1 [16, 65, 5530]" in texts
    assert "[130, 16, 5530]" in picture.description
    (wanted,) = [box for box in picture.boxes if box.label == "wanted"]
    assert "dashed: as on one GPU" in [text.text for text in picture.texts]
    wrong = [box for box in picture.boxes if box.label.startswith("glued") and box.x < 360]
    assert wanted.height * 2 == pytest.approx(sum(box.height for box in wrong))  # 65 against 130
    assert wanted.width == pytest.approx(2 * wrong[0].width)  # 32 against 16


def test_the_shape_that_should_have_been_is_told_in_full(language):
    texts = [text.text for text in shapes_picture((65, 128, 5530), 2, batch_dim=1).texts]
    assert [text for text in texts if text.startswith("✗") and text.endswith("[65, 128, 5530]")]


def test_of_one_output_nothing_is_glued():
    assert "nothing to concatenate" in shapes_picture(CRNN, 1, batch_dim=1).description
    assert "concatenates 2 outputs" in shapes_picture((32, 65), 2).description


def test_a_gather_that_fails_is_said():
    assert gathered_output((65, 33, 7), 2, 1) is None
    texts = [text.text for text in shapes_picture((65, 33, 7), 2, batch_dim=1).texts]
    assert "✗ gather fails" in texts
    assert "sizes 17 and 16 differ in dimension 1" in texts
    assert "gather fails" in shapes_picture((65, 33, 7), 2, batch_dim=1).description


def test_batch_first_needs_no_fix():
    picture = shapes_picture((32, 65), 4)
    assert len([text for text in picture.texts if text.text.startswith("✓")]) == 1
    assert not [text for text in picture.texts if text.text.startswith("✗")]


def test_glued_stripes_follow_the_gpus():
    picture = shapes_picture(CRNN, 64, batch_dim=1)
    stripes = [box for box in picture.boxes if box.label.startswith("glued") and box.x < 360]
    assert [box.gpu for box in stripes] == list(range(32))
    assert [box.y for box in stripes] == sorted(box.y for box in stripes)


def test_both_axes_of_every_panel_are_named():
    texts = [t.text for t in shapes_picture(CRNN, 2, batch_dim=1).texts if t.text.startswith("↓")]
    assert texts == ["↓ dimension 0    → dimension 1"] * 2
    assert "↓ dimension 0" in [t.text for t in shapes_picture((32,), 2).texts]


def test_what_cannot_be_drawn_is_refused():
    with pytest.raises(ValueError, match="dim must be from -3 to 2, got 3"):
        labkit.draw_shapes(CRNN, 2, batch_dim=3)
    with pytest.raises(ValueError, match="gpus must be from 1 to 1024, got 0"):
        labkit.draw_shapes(CRNN, 0)


def test_the_batch_is_on_the_first_dimension_if_nothing_else_is_said():
    import matplotlib.pyplot as plt

    one, other = (labkit.draw_shapes((32, 65), 4, **given) for given in ({}, {"batch_dim": 0}))
    assert [text.get_text() for text in one.texts] == [text.get_text() for text in other.texts]
    assert "✗" not in "".join(text.get_text() for text in one.texts)
    plt.close("all")


def test_in_a_chinese_figure_signs_are_set_in_a_font_that_has_them(monkeypatch):
    import matplotlib.pyplot as plt

    from labkit.view import figure

    labkit.set_language("zh")
    monkeypatch.setattr(figure, "chinese_font", lambda: "A Chinese Font")
    ax = labkit.draw_shapes((65, 33, 7), 2, batch_dim=1)
    (said,) = [text for text in ax.texts if text.get_text().startswith("✗")]
    assert said.get_fontfamily() == ["A Chinese Font", "DejaVu Sans"]
    plt.close("all")


def test_inputs_are_drawn_as_scatter_cuts_them():
    picture = inputs_picture(Cut((("traffic", (8, 6, 4)), ("roads", (14, 2))), 2))
    tips = {box.label: box.tip for box in picture.boxes}
    assert tips["roads cuda:1"] == "roads · cuda:1 · [7, 2]"
    assert tips["traffic cuda:1"] == "traffic · cuda:1 · [4, 6, 4]"
    picture = inputs_picture(Cut((("tokens", (8, 7)),), 2, ("[4, 7, 6]", "")))
    (failed,) = [box for box in picture.boxes if box.dashed]
    assert failed.label == "returned cuda:1"
    assert "[4, 7, 6]" in [text.text for text in picture.texts]
    picture = inputs_picture(Cut((("photos[0]", (3, 7, 7)),), 2, ("", "[1, 4]")))
    given, returned = (
        [box for box in picture.boxes if box.label.startswith(row)] for row in ("photos", "ret")
    )
    assert [(box.x, box.width) for box in returned] == [(box.x, box.width) for box in given]
    assert [box.width for box in given] == pytest.approx([2 * given[1].width, given[1].width])
    assert repr(Cut((("roads", (14, 2)),), 2)) == "roads [14, 2]: [7, 2], [7, 2]"
