"""A machine comes and goes: torch sees its GPUs while it is there, and is itself again afterwards."""

import logging
import sys
import threading
import traceback
from types import SimpleNamespace

import pytest
import torch

import labkit
from labkit.base.patches import Patch, Patches
from simgpu import inherit, machine_in_use
from simgpu.torch_api.table import table


def seen():
    """How many GPUs torch sees."""
    return torch.cuda.device_count()


def test_a_plain_call_lasts_until_closed_and_can_be_repeated():
    two = labkit.simulate(gpus=2)
    assert seen() == 2
    three = labkit.simulate(gpus=3)
    eight = labkit.simulate(gpus=8)
    assert (seen(), two.closed) == (8, True)  # only the last one before a with block could come back
    eight.close()
    eight.close()
    assert (seen(), three.closed) == (0, True)


def test_what_a_plain_call_opens_in_a_block_ends_with_it():
    with labkit.simulate(gpus=3) as three:
        four = labkit.simulate(gpus=4)
        assert seen() == 4
        five = labkit.simulate(gpus=5)
    assert (seen(), three.closed, four.closed, five.closed) == (0, True, True, True)
    outer = labkit.simulate(gpus=2)
    with labkit.simulate(gpus=3):
        labkit.simulate(gpus=4)
        with labkit.simulate(gpus=5):
            labkit.simulate(gpus=6)
        assert seen() == 4
    assert seen() == 2
    outer.close()


def test_a_plain_machine_closed_in_a_block_leaves_the_blocks_own():
    with labkit.simulate(gpus=3):
        labkit.simulate(gpus=4).close()
        assert seen() == 3


def test_layers_are_in_while_their_machine_is_and_each_rests_on_what_is_below_it():
    class Torch:
        said = "torch"

    def layer(name):
        return Patches(lambda: [Patch(Torch, "said", f"{name} on {Torch.said}")])

    first, second, third = map(layer, ("first", "second", "third"))
    with labkit.simulate(gpus=1):
        machine = machine_in_use()
        for one in (first, second, third):
            machine.add_patches(one)
        assert Torch.said == "third on second on first on torch"
        with labkit.simulate(gpus=2):
            assert Torch.said == "torch"
        assert Torch.said == "third on second on first on torch"
        machine.remove_patches(second)
        assert Torch.said == "third on first on torch"
        with labkit.simulate(gpus=2):
            machine.remove_patches(third)
            machine.add_patches(second)
            assert Torch.said == "torch"
        assert Torch.said == "second on first on torch"
        machine.remove_patches(first)
        assert Torch.said == "second on torch"
    assert Torch.said == "torch"


def test_a_machine_closed_inside_its_block_keeps_its_place_to_the_end():
    outer = labkit.simulate(gpus=2)
    with labkit.simulate(gpus=3) as three:
        three.close()
        assert seen() == 0  # torch as it really is
        labkit.simulate(gpus=4)
        assert seen() == 4
    assert seen() == 2
    outer.close()
    assert seen() == 0


def test_a_machine_can_be_entered_after_another_was_opened():
    two, three = labkit.simulate(gpus=2), labkit.simulate(gpus=3)
    with two:
        assert seen() == 2
    assert (seen(), two.closed) == (3, True)
    three.close()
    with pytest.raises(RuntimeError, match=r"simulate\(gpus=3\), closed: make a new machine"), three:
        pass


def test_a_machine_that_cannot_be_opened_leaves_the_one_before(monkeypatch):
    before = labkit.simulate(gpus=2)

    def fails(machine):
        yield from table(machine)
        assert len(machine.gpus) == 2, "three GPUs"

    monkeypatch.setattr("simgpu.machine.table", fails)
    with pytest.raises(AssertionError, match="three GPUs"):
        labkit.simulate(gpus=3)
    assert (seen(), machine_in_use()) == (2, before)
    before.close()
    assert seen() == 0


def test_a_machine_that_another_thread_replaced_leaves_this_thread():
    machine = labkit.simulate(gpus=2)
    thread = threading.Thread(target=lambda: labkit.simulate(gpus=3))
    thread.start()
    thread.join()
    machine.close()
    assert (torch.ones(1, device="cuda:2") * 2).device == torch.device("cuda:2")
    machine_in_use().close()
    assert torch._C._len_torch_function_stack() == 0


@pytest.mark.parametrize(("arguments", "error", "text"), [
    ({"gpus": -1}, ValueError, "gpus must be from 0 to 1024, got -1"),
    ({"gpus": "eight"}, TypeError, "gpus must be a whole number, got 'eight'"),
    ({"gpus": True}, TypeError, "gpus must be a whole number"),
    ({"gpus": 2, "memory": "much"}, ValueError, "memory must be bytes or text like '16 GiB', got 'much'"),
    ({"gpus": 2, "memory": ["1 GiB"]}, ValueError, "memory must be a list with one entry for each of the 2 GPUs"),
    ({"gpus": 2, "order": [0, 0]}, ValueError, "order must name each of the 2 GPUs once"),
    ({"gpus": 2, "order": "fast"}, ValueError, "order must be None, 'threads' or a list"),
    ({"gpus": 2, "backing": "cuda:0"}, TypeError, "unexpected keyword argument 'backing'"),
])  # fmt: skip
def test_misuse_is_refused_before_anything_changes(arguments, error, text):
    with pytest.raises(error, match=text.replace("(", r"\(")):
        labkit.simulate(**arguments)
    assert machine_in_use() is None


def test_a_way_back_is_named_only_to_a_gpu_that_is_there():
    with labkit.simulate(gpus=3):
        old, older = torch.ones(2, device="cuda:2"), torch.ones(2, device="cuda:1")
    with labkit.simulate(gpus=2):
        with pytest.raises(RuntimeError, match=r"or move it with \.cpu\(\) first$"):
            old + 1
        with pytest.raises(RuntimeError, match=r"or move it with \.cpu\(\) or \.to\('cuda:1'\) first$"):
            older + 1


def test_what_children_are_told_makes_a_machine_like_it(monkeypatch):
    with labkit.simulate(gpus=3, memory=["1 GiB", "2 GiB", 4096], order=[2, 0, 1]) as machine:
        keep = torch.ones(1, device="cuda")
        hooks = (sys, "excepthook"), (sys, "__excepthook__"), (threading, "excepthook")
        for of, name in (*hooks, (traceback.TracebackException, "__init__")):
            monkeypatch.setattr(of, name, getattr(of, name))  # which puts it back
        other = inherit()
        assert other is machine_in_use() is not machine
        assert other.description == machine.description
        assert other.order == (2, 0, 1)
        assert [gpu.capacity for gpu in other.gpus] == [2**30, 2**31, 4096]
    assert keep.tolist() == [1]


def test_a_tensor_of_another_machine_is_refused_by_name():
    with labkit.simulate(gpus=2):
        old = torch.ones(2, device="cuda:1")
    with labkit.simulate(gpus=8):
        with pytest.raises(RuntimeError, match=r"on cuda:1 of simulate\(gpus=2\), closed, which is not"):
            old + 1
        with pytest.raises(RuntimeError, match="not the machine in use"):
            torch.cat([old, old])
        with pytest.raises(RuntimeError, match="not the machine in use"):
            torch._foreach_add_([old, old], 1)
        for use in (lambda: old[0], lambda: old.mul_(1), lambda: old.sum().item()):
            with pytest.raises(RuntimeError, match="not the machine in use"):
                use()
        fresh = torch.zeros(2, device="cuda:1")
        for copy in (lambda: old.copy_(torch.zeros(2)), lambda: old.copy_(0), lambda: fresh.copy_(old)):
            with pytest.raises(RuntimeError, match="not the machine in use"):
                copy()
        assert fresh.tolist() == [0, 0]  # nothing was written
        assert old.cpu().tolist() == [1, 1]
        assert (old.to("cuda:3") + 1).device == torch.device("cuda:3")
        assert (old.cpu() + 1).tolist() == [2, 2]
    assert (old + 1).tolist() == [2, 2]  # without a machine it is a plain tensor


def test_use_gpus_simulates_where_there_are_none():
    built_for = torch.version.cuda
    triton = logging.getLogger("torch.utils.flop_counter")  # warns that a build for CUDA lacks triton
    assert labkit.use_gpus(3).gpus[2].device == torch.device("cuda:2")
    assert torch.cuda.device_count() == 3
    assert triton.disabled
    labkit.use_gpus(0)
    assert not torch.cuda.is_available()
    assert torch.version.cuda == built_for
    assert not triton.disabled
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
    one = labkit.use_gpus(1)
    labkit.use_gpus(2)
    one.close()  # the limit that is open is another's, and ends when the next one comes
    assert torch.cuda.device_count() == 2
    assert labkit.use_gpus(4).gpus == (0, 1, 2, 3)
    one = labkit.use_gpus(1)
    for again in range(2):
        with labkit.simulate(gpus=8), labkit.simulate(gpus=0):
            assert (torch.cuda.device_count(), one.closed) == (0, True)
        assert (torch.cuda.device_count(), one.closed) == (1, False), (
            again
        )  # the block's end restores the limit
    labkit.simulate(gpus=8).close()
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


def test_the_block_of_a_second_thread_takes_the_machine_from_the_first_one_until_it_ends():
    """Torch shows all threads one machine. What a thread has on another one is refused, by name."""
    within, go = threading.Event(), threading.Event()

    def work():
        with labkit.simulate(gpus=3):
            within.set()
            go.wait(30)

    thread = threading.Thread(target=work)
    with labkit.simulate(gpus=2) as machine:
        x = torch.ones(2, device="cuda:1")
        thread.start()
        within.wait(30)
        with pytest.raises(
            RuntimeError, match=r"cuda:1 of simulate\(gpus=2\), .* in use \(simulate\(gpus=3\)"
        ):
            x + 1
        go.set()
        thread.join()
        assert machine_in_use() is machine
        assert (x + 1).device == x.device


def test_a_question_about_tensors_on_two_gpus_is_answered_as_nothing_is_computed(gpus):
    one, other = torch.ones(2, device="cuda:0"), torch.ones(2, device="cuda:1")
    assert one.is_same_size(other)
    assert not one.is_set_to(other)


def test_real_gpus_show_themselves_until_they_are_given_back(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", "Tesla {}".format)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda gpu: gpu * 2**30)
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda gpu: SimpleNamespace(total_memory=4 * 2**30)
    )
    with labkit.RealGpus(2) as gpus:
        assert (torch.cuda.device_count(), gpus.memory(1)) == (2, 2**30)
        assert repr(gpus) == "2 real GPUs\n  cuda:0  Tesla 0\n  cuda:1  Tesla 1"
        picture = gpus._repr_svg_()
        assert "2 real GPUs, 1 GiB in use." in picture
        assert "1 GiB of 4 GiB" in picture
    assert gpus._repr_svg_() is None


def test_no_machine_is_inherited_where_none_is_told_of(monkeypatch):
    monkeypatch.delenv("LABKIT_MACHINE", raising=False)
    assert inherit() is None
    with labkit.use_gpus(0) as machine:
        assert repr(machine) == "no GPU"


def test_a_machine_that_is_entered_again_ends_with_the_inner_block():
    with labkit.simulate(gpus=2) as machine:
        with machine:
            assert seen() == 2
        assert machine.closed
        assert machine_in_use() is None
