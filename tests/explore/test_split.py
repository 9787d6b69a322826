"""The split explorer without a browser: state in, picture out."""

import pytest

import labkit
from labkit.plans.split import split
from labkit.view.pictures.split_lanes import split_picture
from labkit.view.svg import to_svg


def test_state_moves_the_slider_and_the_slider_moves_the_state():
    explorer = labkit.SplitExplorer(rows=10, gpus=8)
    assert (explorer.rows, explorer.gpus) == (10, 8)
    explorer.rows = 17
    assert explorer._controls["rows"].value == 17
    explorer._controls["gpus"].value = 3
    assert explorer.gpus == 3
    assert explorer._picture.value == to_svg(split_picture(split(17, 3)))
    assert repr(explorer) == "SplitExplorer(rows=17, gpus=3)"


@pytest.mark.parametrize(
    ("state", "error", "text"),
    [
        ({"rows": "ten"}, TypeError, "rows must be a whole number, got 'ten'"),
        ({"rows": 129}, ValueError, "rows must be from 0 to 128, got 129"),
        ({"gpus": 0}, ValueError, "gpus must be from 1 to 64, got 0"),
    ],
)
def test_bad_state_is_refused(state, error, text):
    with pytest.raises(error, match=text):
        labkit.SplitExplorer(**state)
    explorer = labkit.SplitExplorer()
    with pytest.raises(error, match=text):
        setattr(explorer, *next(iter(state.items())))
    assert (explorer.rows, explorer.gpus) == (30, 8)


def test_an_unknown_name_is_refused():
    with pytest.raises(AttributeError, match="SplitExplorer has no 'cows'; it has rows, gpus"):
        _ = labkit.SplitExplorer().cows


def test_it_keeps_its_language():
    labkit.set_language("zh")
    explorer = labkit.SplitExplorer()
    labkit.set_language("en")
    explorer.rows = 10
    assert "空闲" in explorer._picture.value
    assert labkit.get_language() == "en"


def test_readers_without_a_kernel_get_a_picture():
    bundle = labkit.SplitExplorer(rows=10, gpus=8)._repr_mimebundle_()
    assert bundle["text/plain"] == "SplitExplorer(rows=10, gpus=8)"
    assert bundle["image/svg+xml"].startswith("<svg")
    assert "application/vnd.jupyter.widget-view+json" in bundle
