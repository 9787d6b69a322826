"""CUDA is initialised by each rank for itself, as each process does."""

import os
import warnings

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from labkit_ranks.threads.world import World


def test_a_mesh_chooses_the_gpu_of_a_rank_that_has_chosen_none():
    def work(rank):
        dist.init_process_group("nccl")
        if rank.number == 0:
            dist.send(torch.ones(1, device="cuda"), 3)  # rank 0 has used its GPU before the others begin
        elif rank.number == 3:
            dist.recv(torch.empty(1, device="cuda:3"), 0)
        before = torch.cuda.is_initialized()
        if rank.number == 2:
            torch.cuda.set_device(1)
        init_device_mesh("cuda", (4,))
        return before, torch.ones(1, device="cuda").device.index

    with World(4) as world:
        assert world.run(work) == [(True, 0), (False, 1), (False, 1), (True, 0)]


def test_without_torchruns_variables_the_mesh_says_that_it_guesses():
    def work(rank):
        dist.init_process_group("nccl")
        del os.environ["LOCAL_RANK"]
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            init_device_mesh("cuda", (2,))
        return torch.cuda.current_device(), any("did not set/select" in str(each.message) for each in told)

    with World(2) as world:
        assert world.run(work) == [(0, True), (1, True)]


def test_seeds_wait_for_nothing_and_memory_is_read_as_before_the_first_use():
    def work(rank):
        torch.manual_seed(rank.number)
        torch.cuda.manual_seed_all(7)
        empty = torch.cuda.memory_stats(), torch.cuda.is_initialized()
        x = torch.rand(1, device=f"cuda:{rank.number}")
        return empty, x.item(), torch.cuda.is_initialized()

    with World(2) as world:
        first, second = world.run(work)
    assert first[0] == second[0] == ({}, False)
    assert first[1] == second[1]
    assert first[2]
    assert second[2]


def test_the_caller_of_the_ranks_sees_what_it_saw():
    with World(2) as world:
        world.run(lambda rank: None)
        assert torch.cuda.is_initialized()
        assert torch.cuda.nccl.version() >= (2, 20)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:This process")
def test_a_child_that_is_forked_has_lost_the_gpus_if_its_rank_has_used_them():
    def work(rank):
        if rank.number == 0:
            torch.cuda.set_device(0)
        if rank.number == 1:
            kept.append(torch.ones(1, device="cuda"))
        child = os.fork()
        if not child:
            try:
                torch.ones(1, device="cuda:1")
            except RuntimeError as error:
                os._exit(7 if "Cannot re-initialize CUDA in forked subprocess" in str(error) else 8)
            os._exit(0)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    kept = []
    with World(3) as world:
        assert world.run(work) == [7, 7, 0]
