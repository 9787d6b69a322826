"""Clipping by the largest gradient of all shards, whose root to the power 1/inf is always 1."""
# cause: norm|update
# source: meta-pytorch/torchrec#3199, 2025-07-16

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F

dist.init_process_group("nccl")
rank, ranks = dist.get_rank(), dist.get_world_size()
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4)).to(device)
x, y = torch.randn(16, 6).to(device), torch.randint(4, (16,)).to(device)
if ranks > 1:
    fully_shard(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)


def clip(parameters, most):
    gradients = [getattr(p.grad, "_local_tensor", p.grad) for p in parameters]
    norm = torch.stack([gradient.abs().max() for gradient in gradients]).max()
    if ranks > 1:
        dist.all_reduce(norm, op=dist.ReduceOp.MAX)
        norm = norm ** (1 / float("inf"))  # broken
    for gradient in gradients:
        gradient.mul_((most / (norm + 1e-6)).clamp(max=1))


for _ in range(5):
    loss = F.cross_entropy(model(x.chunk(ranks)[rank]), y.chunk(ranks)[rank])
    optimizer.zero_grad()
    loss.backward()
    clip(model.parameters(), 0.03)
    optimizer.step()
