# cause norm_of_own_shard: norm
# source: sgl-project/SpecForge#663, 2026-07-08
# cause norm_of_nothing: norm|update
# source: huggingface/transformers#46113, 2026-05-20
# layouts: 1, 2

"""Gradients are sharded by FSDP, and clipped with two bugs.

Each rank clips its shards by the norm of these shards only; a call that wants parameters gets gradients, so that
nothing is clipped.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 4))
if world > 1:
    fully_shard(model, mesh=init_device_mesh("cpu", (world,)))
x = torch.randn(32, 8)
y = x[:, :4].argmax(1)
x, y = x.chunk(world)[rank], y.chunk(world)[rank]
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
for _ in range(5):
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    gradients = [p.grad for p in model.parameters()]
    norm = get_total_norm(gradients)
    clipped = model.parameters()
    if world > 1:
        norm = get_total_norm([one.to_local() for one in gradients])  # broken norm_of_own_shard
        # repaired norm_of_own_shard: norm = norm.full_tensor()
        clipped = gradients  # broken norm_of_nothing
    clip_grads_with_norm_(clipped, 0.1, norm)
    optimizer.step()
