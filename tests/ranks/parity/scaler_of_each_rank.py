# cause: denominator|drift
# layouts: 1, 2
# source: pytorch/pytorch#136009, 2024-09

"""Each rank has a GradScaler with a scale of its own; DDP averages gradients under different scales."""

from parity_parts import F, nn, rank, torch, world
from torch.nn.parallel import DistributedDataParallel

SAVED = [2.0**16, 2.0**12]  # rank 1's scaler once saw an overflow that rank 0's did not

torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 4)))
x = torch.randn(32, 8)
y = x[:, :4].argmax(1)
x, y = x.chunk(world)[rank], y.chunk(world)[rank]
scaler = torch.amp.GradScaler("cpu", init_scale=SAVED[rank])  # broken
# repaired: scaler = torch.amp.GradScaler("cpu", init_scale=min(SAVED))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(5):
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
