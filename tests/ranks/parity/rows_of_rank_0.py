# cause: rows
# layouts: 1, 2
# source: yaak-ai/rbyte#106, 2026-07-12

"""The DataLoader has no DistributedSampler: every rank reads the first rows of the same order."""

from parity_parts import F, nn, rank, torch, world  # noqa: F401 (rank: repaired)
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

BATCH = 16

torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 4)))
x = torch.randn(128, 8)
data = TensorDataset(x, x[:, :4].argmax(1))
sampler = None  # broken
# repaired: sampler = torch.utils.data.DistributedSampler(data, world, rank, shuffle=False)
loader = DataLoader(data, batch_size=BATCH // world, sampler=sampler)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for x, y in loader:
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
