"""What ranks find in torch that is each one's own."""

import importlib
import sys

import torch
import torch.distributed as dist

from labkit.distributed.world import World


def test_a_module_that_a_rank_imports_late_does_not_keep_its_group():
    name = "torch.distributed.nn.functional"
    kept = sys.modules.pop(name, None)

    def work(rank):
        dist.init_process_group("nccl")
        torch.cuda.set_device(rank.local)
        module = importlib.import_module(name)
        x = torch.tensor([float(rank.number)], device="cuda")
        value = module.all_reduce(x).item()
        assert dist.group.WORLD is not None
        dist.destroy_process_group()
        return value

    try:
        with World(2) as world:
            assert world.run(work) == [1.0, 1.0]
    finally:
        sys.modules.update({name: kept} if kept is not None else {})
