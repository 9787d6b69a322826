"""Shards that are kept on the host between their uses: parameters, gradients and what optimizers hold are there."""

import os

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import CPUOffload, CPUOffloadPolicy, FullyShardedDataParallel, fully_shard

from labkit_ranks.threads.world import World


def train(wrap, to_none):
    def run(rank):
        if not dist.is_initialized():
            dist.init_process_group("nccl")
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        torch.manual_seed(0)
        layers = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
        # Bytes are counted, and gradients looked for, where the weights are on the GPU.
        layers[1].register_forward_hook(lambda *_: torch.cuda.memory_allocated() and None)
        model = wrap(layers)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        for _ in range(3):
            loss = model(torch.ones(4, 8, device="cuda")).square().mean()
            loss.backward()
            grads = {str(p.grad.device) for p in model.parameters() if p.grad is not None}
            optimizer.step()
            optimizer.zero_grad(set_to_none=to_none)
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


@pytest.mark.parametrize("to_none", [True, False])
def test_what_is_offloaded_is_on_the_host_and_trains_alike(to_none):
    with World(2) as world:
        whole = world.run(train(lambda model: model.cuda(), to_none))
        for wrap in (by_fsdp1, by_fsdp2):
            found = world.run(train(wrap, to_none))
            for (loss, places), (expected, _) in zip(found, whole, strict=True):
                assert places == {"cpu"}
                assert abs(loss - expected) < 1e-5
