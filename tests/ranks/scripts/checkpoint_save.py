"""Distributed checkpoints: FSDP2's model and optimizer saved, also beside the training, for another world to load."""

import os
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 3))


def make_rows(step):
    return torch.randn(4, 6, generator=torch.Generator().manual_seed(step))


class Progress:
    """What else a run keeps, as a Stateful."""

    def __init__(self):
        self.step = 0

    def state_dict(self):
        return {"step": torch.tensor(self.step), "note": "kept"}

    def load_state_dict(self, state):
        self.step, self.note = int(state["step"]), state["note"]


def main():
    dist.init_process_group("cpu:gloo,cuda:nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    folder = sys.argv[1]
    model = make_model().cuda()
    for layer in (model[0], model[2]):
        fully_shard(layer)
    fully_shard(model)
    optimizer, progress = torch.optim.Adam(model.parameters(), lr=0.01), Progress()
    for step in range(3):
        optimizer.zero_grad()
        model(make_rows(step).cuda()).square().mean().backward()
        optimizer.step()
        progress.step += 1
        if step == 1:
            weights, state = get_state_dict(model, optimizer)
            dcp.save(
                {"model": weights, "optimizer": state, "progress": progress}, checkpoint_id=f"{folder}/kept"
            )
    future = dcp.async_save({"model": get_state_dict(model, optimizer)[0]}, checkpoint_id=f"{folder}/beside")
    future.result()

    table = torch.arange(28.0).reshape(7, 4).cuda()
    sharded = distribute_tensor(table, model[0].weight.device_mesh, [Shard(0)])
    dcp.save({"table": sharded}, checkpoint_id=f"{folder}/table")
    out = {"weights": [p.full_tensor().detach() for p in model.parameters()]}
    torch.save(out, f"{folder}/{dist.get_rank()}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
