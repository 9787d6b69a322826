"""DDP on the CPU by gloo: what its logger in C++ asks of the group."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from labkit_ranks.threads.world import World


def test_ddp_by_gloo_is_made_and_tells_its_backend():
    def work(rank):
        dist.init_process_group("gloo")
        torch.manual_seed(0)
        model = DistributedDataParallel(torch.nn.Linear(2, 1))
        model(torch.full((1, 2), float(rank.number))).sum().backward()
        return (
            model.module.weight.grad.tolist(),
            model._get_ddp_logging_data()["backend_name"],
            dist.get_backend(),
        )

    with World(2) as world:
        assert world.run(work) == [([[0.5, 0.5]], "simulated gloo", "gloo")] * 2
