"""Pictures can be saved; what is gone says what to do; wrong arguments are named."""

import xml.etree.ElementTree as ET

import pytest

import labkit
from labkit import cost


def test_a_picture_is_written_into_a_file(tmp_path):
    plan = labkit.split(30, 8)
    plan.save(tmp_path / "split.svg")
    assert (tmp_path / "split.svg").read_text("utf-8") == plan._repr_svg_()
    assert ET.parse(tmp_path / "split.svg").getroot().get("aria-label")


@pytest.mark.parametrize("name", ["draw_split", "draw_waits", "RaceExplorer"])
def test_a_name_that_is_gone_says_what_to_do(name, language):
    with pytest.raises(AttributeError, match=rf"{name}.*(\.save\(|RingExplorer)"):
        getattr(labkit, name)
    assert not hasattr(labkit, name)


def test_the_argument_is_named():
    with pytest.raises(TypeError, match="work must be a Workload, got 5"):
        cost.predict_scaling(5, 5)


def test_a_slip_of_the_keyboard_does_not_fill_the_memory():
    with pytest.raises(ValueError, match="gpus must be from 1 to 1024, got 1000000000"):
        labkit.split(3, 10**9)
