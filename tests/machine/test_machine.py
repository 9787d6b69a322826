"""A machine comes and goes: torch sees its GPUs while it is there, and is itself again afterwards."""

import pytest
import torch
from torch import nn

import labkit
from labkit.machine import machine_in_use


def snapshot():
    """Everything in torch that a machine changes, by identity."""
    owners = (
        torch, torch.cuda, torch.cuda.streams, torch._C, torch.Tensor, torch.UntypedStorage, torch.autograd,
        torch.version, torch.backends.cudnn, torch.autocast, torch.autograd.Function, __import__("threading").Thread,
        torch.autograd.function.BackwardCFunction, torch.utils.hooks.BackwardHook, __import__("_thread"),
    )  # fmt: skip
    return [{name: id(value) for name, value in vars(owner).items()} for owner in owners]


def test_leaving_restores_torch_exactly():
    torch.optim.Adam([torch.zeros(1)])  # what torch itself sets up on first use
    before, modes = snapshot(), torch._C._len_torch_function_stack()
    with labkit.simulate(gpus=3):
        model = nn.DataParallel(nn.Linear(5, 2).cuda())
        model(torch.ones(7, 5)).sum().backward()
        torch.cuda.synchronize()
    assert snapshot() == before
    assert torch._C._len_torch_function_stack() == modes
    assert not torch.cuda.is_available()
    assert torch.ones(2).device.type == "cpu"


def test_a_plain_call_lasts_until_closed_and_can_be_repeated():
    two = labkit.simulate(gpus=2)
    assert torch.cuda.device_count() == 2
    eight = labkit.simulate(gpus=8)
    assert torch.cuda.device_count() == 8
    eight.close()
    eight.close()
    assert torch.cuda.device_count() == 0
    assert two.closed


def test_a_with_block_brings_the_machine_before_it_back():
    outer = labkit.simulate(gpus=2)
    x = torch.ones(2, device="cuda:1")
    with labkit.simulate(gpus=5):
        assert torch.cuda.device_count() == 5
    assert torch.cuda.device_count() == 2
    assert x.device == torch.device("cuda:1")
    outer.close()


def test_a_with_block_ends_the_machine_also_after_an_error():
    with pytest.raises(ZeroDivisionError), labkit.simulate(gpus=2):
        1 / 0  # noqa: B018
    assert machine_in_use() is None


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"gpus": 0}, ValueError, "gpus must be at least 1, got 0"),
        ({"gpus": -1}, ValueError, "gpus must be at least 1, got -1"),
        ({"gpus": "eight"}, TypeError, "gpus must be a whole number of at least 1, got 'eight'"),
        ({"gpus": True}, TypeError, "gpus must be a whole number"),
        ({"gpus": 2, "memory": "much"}, ValueError, "memory must be bytes or text like '16 GiB', got 'much'"),
        ({"gpus": 2, "memory": ["1 GiB"]}, ValueError, "memory must have one entry for each of the 2 GPUs"),
        ({"gpus": 2, "order": [0, 0]}, ValueError, "order must name each of the 2 GPUs once"),
        ({"gpus": 2, "order": "fast"}, ValueError, "order must be None, 'threads' or a list"),
        ({"gpus": 2, "backing": "tpu"}, ValueError, "backing must be 'cpu' or a real GPU"),
        ({"gpus": 2, "backing": "cuda:0"}, ValueError, "this computer has 0 real GPUs; use backing='cpu'"),
    ],
)
def test_misuse_is_refused_before_anything_changes(arguments, error, text):
    with pytest.raises(error, match=text.replace("(", r"\(")):
        labkit.simulate(**arguments)
    assert machine_in_use() is None


def test_a_tensor_of_another_machine_is_refused_by_name():
    with labkit.simulate(gpus=2):
        old = torch.ones(2, device="cuda:1")
    with labkit.simulate(gpus=8):
        with pytest.raises(
            RuntimeError, match=r"on cuda:1 of simulate\(gpus=2\), closed, which is not the machine"
        ):
            old + 1
        with pytest.raises(RuntimeError, match="not the machine in use"):
            torch.cat([old, old])
        for use in (lambda: old[0], lambda: old.mul_(1), lambda: old.sum().item()):
            with pytest.raises(RuntimeError, match="not the machine in use"):
                use()
        assert (old.to("cuda:3") + 1).device == torch.device("cuda:3")
        assert (old.cpu() + 1).tolist() == [2, 2]
    assert (old + 1).tolist() == [2, 2]  # without a machine it is a plain tensor


def test_use_gpus_simulates_where_there_are_none():
    assert labkit.use_gpus(3).gpus[2].device == torch.device("cuda:2")
    assert torch.cuda.device_count() == 3
    labkit.use_gpus(0)
    assert not torch.cuda.is_available()
    with pytest.raises(RuntimeError, match="No CUDA GPUs are available"):
        torch.ones(2).cuda()
    with pytest.raises(TypeError, match="gpus must be a whole number"):
        labkit.use_gpus("2")


def test_use_gpus_shows_as_many_real_ones_as_asked_for(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)  # a computer with four
    two = labkit.use_gpus(2)
    assert torch.cuda.device_count() == 2
    assert (two.gpus, two.closed) == ((0, 1), False)
    with labkit.use_gpus(3):
        assert torch.cuda.device_count() == 3
    assert torch.cuda.device_count() == 4
    labkit.use_gpus(1)
    with labkit.simulate(gpus=8):
        assert torch.cuda.device_count() == 8
    assert torch.cuda.device_count() == 4


def test_the_machine_tells_what_it_is():
    with labkit.simulate(gpus=2, memory="11 GiB") as machine:
        keep = torch.zeros(1024, device="cuda:1")
        assert repr(machine).splitlines() == [
            "2 simulated GPUs, 11.00 GiB each",
            "  cuda:0  0 bytes of 11.00 GiB",
            "  cuda:1  4.00 KiB of 11.00 GiB",
        ]
        assert machine.memory(1) == 4096 == keep.nbytes
        with pytest.raises(ValueError, match="gpu must be from 0 to 1, got 2"):
            machine.memory(2)
    assert repr(machine) == "<simulate(gpus=2), closed>"


def test_a_machine_that_comes_back_keeps_the_current_gpu():
    with labkit.simulate(gpus=3):
        torch.cuda.set_device(2)
        with labkit.simulate(gpus=2):
            assert torch.cuda.current_device() == 0
        assert torch.cuda.current_device() == 2


def test_a_default_device_that_is_gone_is_forgotten():
    with labkit.simulate(gpus=2):
        torch.set_default_device("cuda:1")
        with labkit.simulate(gpus=4):
            assert torch.zeros(1).device == torch.device("cuda:1")
        assert torch.zeros(1).device == torch.device("cuda:1")
    assert torch.zeros(1).device == torch.device("cpu")
    machine = labkit.simulate(gpus=2)
    torch.set_default_device("cuda")
    machine.close()
    assert torch.zeros(1).device == torch.device("cpu")


def test_a_device_context_ends_whatever_machines_came_and_went_in_it():
    with labkit.simulate(gpus=2):
        with torch.device("cuda:1"):
            with labkit.simulate(gpus=4):
                assert torch.zeros(1).device == torch.device("cuda:1")
            assert torch.zeros(1).device == torch.device("cuda:1")
        assert torch.zeros(1).device == torch.device("cpu")
        assert torch.zeros(1, device="cuda").device == torch.device("cuda:0")
    with torch.device("cpu"):
        machine = labkit.simulate(gpus=2)
    assert torch.zeros(1, device="cuda").device == torch.device("cuda:0")
    machine.close()
    assert torch._C._len_torch_function_stack() == 0
