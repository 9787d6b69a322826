"""Shards that are kept on the host between their uses: parameters, gradients and what optimizers hold are there."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import CPUOffload, CPUOffloadPolicy, FullyShardedDataParallel, fully_shard

from labkit.distributed.world import World


def train(wrap):
    def run(rank):
        if not dist.is_initialized():
            dist.init_process_group("nccl")
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        torch.manual_seed(0)
        model = wrap(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        for _ in range(3):
            loss = model(torch.ones(4, 8, device="cuda")).square().mean()
            loss.backward()
            grads = {str(p.grad.device) for p in model.parameters() if p.grad is not None}
            optimizer.step()
            optimizer.zero_grad()
        held = {
            str(value.device)
            for state in optimizer.state.values()
            for value in state.values()
            if isinstance(value, torch.Tensor)
        }
        return loss.item(), grads | held | {str(p.device) for p in model.parameters()}

    return run


def by_fsdp2(model):
    return fully_shard(model, offload_policy=CPUOffloadPolicy()) or model


def by_fsdp1(model):
    return FullyShardedDataParallel(
        model, cpu_offload=CPUOffload(offload_params=True), device_id=torch.cuda.current_device()
    )


def test_what_is_offloaded_is_on_the_host_and_trains_alike():
    with World(2) as world:
        whole = world.run(train(lambda model: model.cuda()))
        for wrap in (by_fsdp1, by_fsdp2):
            for (loss, places), (expected, _) in zip(world.run(train(wrap)), whole, strict=True):
                assert places == {"cpu"}
                assert abs(loss - expected) < 1e-5
