"""Tracebacks of scripts: without the frames of the simulation, nor those that torch calls anew because of it."""

import traceback

import pytest
import torch
import torch.nn.functional as F

import labkit
from labkit.base.patches import Patches
from simgpu import tracebacks as frames


@pytest.fixture(autouse=True)
def machine():
    with labkit.simulate(2):
        yield


def refused(call):
    with pytest.raises((RuntimeError, IndexError)) as caught:
        call()
    return caught.value


def names(error):
    frames.strip_labkit_frames(error)
    found = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
    return found[found.index("<lambda>") + 1 :]


def mixed():
    return torch.ones(2, device="cuda:0") + torch.ones(2, device="cuda:1")


def test_a_function_that_asks_our_mode_and_is_called_again_stands_once():
    error = refused(lambda: F.cross_entropy(torch.ones(2, 3, device="cuda"), torch.ones(2, dtype=torch.int)))
    assert names(error) == ["cross_entropy"]
    assert "handle_torch_function" not in "".join(traceback.format_exception(error))


def test_so_does_what_it_calls():
    error = refused(lambda: F.gumbel_softmax(torch.ones(2, 3, device="cuda"), dim=7))
    assert names(error)[0] == "gumbel_softmax"
    assert len(set(names(error))) == len(names(error))


def test_a_function_that_asks_on_behalf_of_another_is_called_twice_and_stands_twice():
    """What runs between the two calls is the user's, and so it is where the line of the error may be looked for."""

    def outer(x):
        if torch.overrides.has_torch_function((x,)):
            return torch.overrides.handle_torch_function(inner, (x,), x)
        return mixed()

    def inner(x):
        return callback()

    def callback():
        return outer(0)

    error = refused(lambda: outer(torch.ones(2, device="cuda")))
    assert names(error) == ["outer", "inner", "callback", "outer", "mixed"]


def test_nothing_of_an_operator_is_left():
    assert names(refused(lambda: mixed())) == ["mixed"]


def test_a_script_that_prints_its_error_prints_it_so():
    error = refused(lambda: mixed())
    with Patches(frames.patch_printed_tracebacks):
        assert "labkit" not in "".join(traceback.format_exception(error)).replace(__file__, "")


def test_so_it_prints_the_error_from_which_its_own_came():
    def mine():
        try:
            mixed()
        except RuntimeError as error:
            raise RuntimeError("mine") from error

    error = refused(mine)
    with Patches(frames.patch_printed_tracebacks):
        assert "labkit" not in "".join(traceback.format_exception(error)).replace(__file__, "")


def test_all_can_be_seen(monkeypatch):
    monkeypatch.setenv("LABKIT_TRACEBACK", "full")
    with Patches(frames.patch_printed_tracebacks):
        assert "__torch_function__" in "".join(traceback.format_exception(refused(lambda: mixed())))
    assert "__torch_function__" in names(refused(lambda: mixed()))


class Asks(torch.nn.Module):
    def forward(self, x):
        return {}["key"] + x


def test_a_key_error_of_a_replica_is_printed_in_lines_as_pytorch_prints_it():
    parallel = torch.nn.DataParallel(Asks(), [0, 1])
    with pytest.raises(KeyError) as caught:
        parallel(torch.ones(4, 2, device="cuda:0"))
    with Patches(frames.patch_printed_tracebacks):
        printed = "".join(traceback.format_exception(caught.value))
    assert "\nKeyError: Caught KeyError in replica 0 on device 0.\nOriginal Traceback" in printed
    assert "\\n" not in printed
