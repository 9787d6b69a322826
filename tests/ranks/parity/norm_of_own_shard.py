# cause: norm
# layouts: 1, 2
# source: sgl-project/SpecForge#663, 2026-07-08

"""Gradients are sharded by FSDP, and each rank clips its shards by the norm of these shards only."""

from parity_parts import F, dist, nn, rank, torch, world  # noqa: F401 (dist: repaired)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 4))
fully_shard(model, mesh=init_device_mesh("cpu", (world,)))
x = torch.randn(32, 8)
y = x[:, :4].argmax(1)
x, y = x.chunk(world)[rank], y.chunk(world)[rank]
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
for _ in range(5):
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    shards = [p.grad.to_local() for p in model.parameters()]
    norm = sum(shard.square().sum() for shard in shards).sqrt()  # broken
    # repaired: squares = sum(shard.square().sum() for shard in shards)
    # repaired: dist.all_reduce(squares)
    # repaired: norm = squares.sqrt()
    for shard in shards:
        shard.mul_((0.1 / norm).clamp(max=1))
    optimizer.step()
