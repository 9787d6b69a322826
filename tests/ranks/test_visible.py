"""A rank may say which GPUs it sees, by CUDA_VISIBLE_DEVICES, until it uses CUDA, as a process may."""

import os

import pytest
import torch
import torch.distributed as dist

import labkit
from labkit_ranks.threads.world import World

SCRIPT = """
import os
os.environ["CUDA_VISIBLE_DEVICES"] = os.environ["LOCAL_RANK"]
import torch
import torch.distributed as dist
device = torch.device("cuda:0")
torch.cuda.set_device(device)
dist.init_process_group("nccl", device_id=device)
x = torch.full((1,), 2.0**dist.get_rank(), device=device)
dist.all_reduce(x)
module = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2).to(device), device_ids=[0])
module(torch.ones(1, 2, device=device)).sum().backward()
bus = torch.cuda.get_device_properties(0).pci_bus_id
print(f"{dist.get_rank()}: {x.item():g} {torch.cuda.device_count()} {bus}", flush=True)
dist.destroy_process_group()
"""


@pytest.mark.parametrize("mode", [(), ("--processes",)], ids=["threads", "processes"])
def test_cuda_0_is_the_gpu_that_the_rank_has_listed(as_command, mode):
    code, out, err = as_command(SCRIPT, options=(*(mode or ["--summary"]), "--nproc-per-node", "4"))
    assert code == 0, err
    assert all(f"{k}: 15 1 {k}" in out for k in range(4)), out  # lines of processes may meet in one
    assert err.count("cuda:0  peak") == (0 if mode else 4)


@pytest.mark.parametrize("mode", [(), pytest.param(("--processes",), marks=pytest.mark.more)])
def test_two_ranks_that_list_one_gpu_are_told_so(as_command, mode):
    text = SCRIPT.replace('os.environ["LOCAL_RANK"]', '"1"')
    code, _, err = as_command(text, options=(*mode, "--nproc-per-node", "2"))
    assert code
    assert "Duplicate GPU detected" in err
    assert "both on CUDA device 1000" in err


def test_memory_and_random_numbers_are_of_what_each_sees():
    def work(rank):
        torch.cuda.manual_seed(5)
        os.environ["CUDA_VISIBLE_DEVICES"] = f"{3 - rank.number},{rank.number}"
        seed = torch.cuda.initial_seed()
        x = torch.ones(2**18 * (1 + rank.number), device="cuda")
        os.environ["CUDA_VISIBLE_DEVICES"] = "0,1,2,3"  # too late: CUDA is in use
        return seed, torch.cuda.device_count(), torch.cuda.memory_allocated(), x.device.index

    with World(4) as world:
        found = world.run(work)
        assert [rank.gpu.index for rank in world.ranks] == [0] * 4
    assert found == [(5, 2, 2**20 * (1 + k), 0) for k in range(4)]
    assert torch.cuda.device_count() != 2  # outside of ranks nothing has changed


@pytest.mark.parametrize("mode", [(), pytest.param(("--processes",), marks=pytest.mark.more)])
def test_an_environment_is_copied_as_ever(as_command, mode):
    text = (
        "import copy, os, pickle\nbefore = copy.deepcopy(os.environ)\nassert before == os.environ\n"
        "before['CUDA_VISIBLE_DEVICES'] = '0'\nassert copy.copy(os.environ._data) == os.environ._data\n"
        "import torch\nassert torch.cuda.device_count() == 2\n"
    )
    code, _, err = as_command(text, options=(*mode, "--nproc-per-node", "2"))
    assert code == 0, err


def test_who_takes_it_back_sees_all_again_and_who_lists_none_has_none():
    def work(rank):
        os.environ["CUDA_VISIBLE_DEVICES"] = "" if rank.number else "1"
        few = torch.cuda.device_count()
        if not rank.number:
            del os.environ["CUDA_VISIBLE_DEVICES"]
        return few, torch.cuda.device_count()

    with World(2) as world:
        assert world.run(work) == [(1, 2), (0, 0)]


def test_nodes_have_a_cuda_0_each():
    def work(rank):
        os.environ["CUDA_VISIBLE_DEVICES"] = os.environ["LOCAL_RANK"]
        dist.init_process_group("nccl")
        x = torch.ones(1, device="cuda")
        dist.all_reduce(x)
        return x.item()

    with World(4, nodes=2) as world:
        assert world.run(work) == [4.0] * 4


def test_in_a_notebook_cuda_is_in_use_from_the_first_cell():
    """Its ranks begin with a GPU and a group: the variable comes too late, as it does on a GPU."""
    with labkit.ranks(2) as ranks:
        ranks.execute("import os\nos.environ['CUDA_VISIBLE_DEVICES'] = '0'\nimport torch")
        assert ranks.execute("torch.cuda.device_count()") == [2, 2]
        assert ranks[1]["device"].index == 1
