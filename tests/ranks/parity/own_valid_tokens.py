# cause: denominator
# layouts: 1, 2
# source: NVIDIA/Megatron-LM#7452, 2026-09-17

"""Each rank divides its summed loss by its own valid tokens, and DDP averages these means."""

from parity_parts import F, dist, nn, rank, torch, world  # noqa: F401 (dist: repaired)
from torch.nn.parallel import DistributedDataParallel

torch.manual_seed(0)
model = DistributedDataParallel(
    nn.Sequential(nn.Embedding(16, 32), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 16))
)
ids = torch.randint(16, (8, 24))
labels = (ids * 3 + 1) % 16
lengths = torch.tensor([24, 20, 22, 18, 6, 4, 9, 5])  # the rest of each row is padding
labels[torch.arange(24) >= lengths[:, None]] = -100
ids, labels = ids.chunk(world)[rank], labels.chunk(world)[rank]
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for _ in range(5):
    losses = F.cross_entropy(model(ids).flatten(0, 1), labels.flatten(), reduction="sum")
    loss = losses / (labels != -100).sum()  # broken
    # repaired: counted = (labels != -100).sum()
    # repaired: dist.all_reduce(counted)
    # repaired: loss = losses * world / counted
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
