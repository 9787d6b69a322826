"""Where the tensors are that C++ brings, and a barrier's, when a rank has chosen no GPU."""

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from labkit_ranks.calls import checks
from labkit_ranks.threads.world import World


def test_ddp_of_a_model_on_another_gpu_than_the_current_one():
    def work(rank):
        dist.init_process_group("nccl")
        torch.manual_seed(rank.number)
        model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2)).to(rank.number)
        model = DistributedDataParallel(model, device_ids=[rank.number])
        for _ in range(2):
            model(torch.ones(2, 2, device=rank.number) * rank.number).sum().backward()
        assert torch.cuda.current_device() == 0
        return model.module[0].weight.tolist(), model.module[0].weight.grad.device.index

    with World(2) as world:
        first, second = world.run(work)
    assert first[0] == second[0]
    assert (first[1], second[1]) == (0, 1)


@pytest.mark.parametrize("how", ["guessed", "bound", "used"])
def test_a_barrier_takes_the_gpu_of_its_rank(how, monkeypatch):
    """torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp, guessDeviceId."""
    devices = {}
    monkeypatch.setattr(
        checks, "check_call", lambda call, group: devices.update({(call.kind, call.rank): call.device})
    )

    def work(rank):
        other = torch.device("cuda", (rank.number + 1) % 2)
        dist.init_process_group("nccl", device_id=other if how == "bound" else None)
        if how == "used":
            dist.all_reduce(torch.ones(1, device=other))
        dist.barrier()

    with World(2) as world:
        world.run(work)
    own = [f"cuda:{number}" for number in range(2)]
    assert [devices["barrier", number] for number in range(2)] == (own if how == "guessed" else own[::-1])


def test_a_groups_methods_take_roots_and_reductions_by_themselves():
    """The shorter forms that torch/csrc/distributed/c10d/init.cpp has of each."""

    def work(rank):
        dist.init_process_group("nccl")
        group, device = dist.group.WORLD, torch.device("cuda", rank.number)
        x = torch.full((2,), rank.number + 1.0, device=device)
        group.allreduce(x, dist.ReduceOp.MAX).wait()
        y = torch.full((1,), rank.number + 1.0, device=device)
        group.broadcast(y, root=1).wait()
        out = [torch.zeros(1, device=device) for _ in range(2)]
        group.allgather(out, torch.full((1,), float(rank.number), device=device)).wait()
        mine = torch.zeros(1, device=device)
        group.scatter(mine, out if rank.number == 0 else [], 0).wait()
        group.reduce_scatter(y, [torch.ones(1, device=device)] * 2, dist.ReduceOp.SUM).wait()
        return x.tolist(), torch.cat(out).tolist(), mine.item(), y.item()

    with World(2) as world:
        assert world.run(work) == [([2, 2], [0, 1], 0, 2), ([2, 2], [0, 1], 1, 2)]
