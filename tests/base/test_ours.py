"""What is labkit's, what is torch's, and what is the user's."""

from pathlib import Path

import torch

import labkit
from labkit.base import ours


def test_modules_go_by_their_package():
    for name in ("labkit", "labkit.machine.ops.mode", "labkit.any_room.of.tomorrow"):
        assert ours.is_our_module(name)
    for name in ("labkits", "torch.nn", "__main__", None, ""):
        assert not ours.is_our_module(name)
    assert ours.is_torch_module("torch.nn.functional")
    assert not ours.is_torch_module("torchvision.models")


def test_files_go_by_the_packages_folder():
    room = Path(labkit.__file__).parent
    assert ours.is_our_file(str(room / "machine" / "ops" / "mode.py"))
    assert not ours.is_our_file(str(room.with_name("labkit_of_mine") / "train.py"))
    assert not ours.is_our_file(__file__)


def test_tracebacks_show_the_engine_and_hide_the_rest():
    room = Path(labkit.__file__).parent
    assert Path(ours.SHOWN).is_dir()
    assert not ours.is_hidden_file(str(room / "engine" / "replicate.py"))
    assert ours.is_hidden_file(str(room / "turns" / "baton.py"))


def test_files_of_torch_are_found():
    (found,) = ours.torch_files("nn/functional.py")
    assert found == torch.nn.functional.__file__
