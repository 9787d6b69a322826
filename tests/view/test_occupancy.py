"""The picture of a machine, which a bare last expression in a cell shows."""

import pytest
import torch

import labkit
from labkit.plans.footprint import Occupancy
from labkit.view.pictures.lanes import occupancy_picture

GIB = 2**30


def test_lanes_are_as_long_as_the_memory_and_filled_as_far_as_it_is_used():
    picture = occupancy_picture(Occupancy((4 * GIB, 0, 1), (16 * GIB, 8 * GIB, 16 * GIB)))
    lanes = {box.label: box for box in picture.boxes}
    assert lanes["cuda:1 memory"].width == pytest.approx(lanes["cuda:0 memory"].width / 2)
    assert lanes["cuda:0 used"].width == pytest.approx(lanes["cuda:0 memory"].width / 4)
    assert lanes["cuda:0 used"].gpu == 0
    assert "cuda:1 used" not in lanes
    assert lanes["cuda:2 used"].width >= 1  # a byte is in use, and seen
    assert "4 GiB of 16 GiB" in {text.text for text in picture.texts}


def test_a_machine_shows_itself_in_both_languages():
    with labkit.simulate(gpus=2, memory=["8 GiB", "4 GiB"]) as machine:
        kept = torch.zeros(2**20, device="cuda:1")
        drawn = machine._repr_svg_()
        assert 'aria-label="2 simulated GPUs, 4 MiB in use."' in drawn
        assert "memory differs" in repr(machine)
        labkit.set_language("zh")
        assert "2 块模拟 GPU，显存大小不一" in repr(machine)
        assert "2 块模拟 GPU，显存共用去 4 MiB。" in machine._repr_svg_()
        del kept
    assert machine._repr_svg_() is None


def test_a_huge_machine_is_listed_not_drawn():
    with labkit.simulate(gpus=65) as machine:
        assert machine._repr_svg_() is None
        assert "cuda:64" in repr(machine)


def test_real_gpus_are_called_so():
    assert (
        occupancy_picture(Occupancy((0,), (GIB,), simulated=False)).description == "1 real GPU, 0 B in use."
    )
