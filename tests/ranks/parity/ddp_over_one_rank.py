# cause: reduction
# layouts: 1, 2
# source: ByteDance-Seed/VeOmni#1059, 2026-08-18

"""Context parallelism: the ranks share rows, and DDP reduces over the data group, which has one rank."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.nn.functional import all_gather
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()


class Model(nn.Module):
    """One causal attention; each rank has a piece of the sequence and gathers keys and values."""

    def __init__(self, vocabulary=16, hidden=32):
        super().__init__()
        self.inner, self.place = nn.Embedding(vocabulary, hidden), nn.Embedding(32, hidden)
        self.qkv, self.out = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.head = nn.Linear(hidden, vocabulary)

    def forward(self, ids, positions):
        x = self.inner(ids) + self.place(positions)
        q, k, v = self.qkv(x).chunk(3, -1)
        k, v = (torch.cat(list(all_gather(t.contiguous())), 1) for t in (k, v))
        mask = torch.arange(k.shape[1]) <= positions[:, None]
        return self.head(x + self.out(F.scaled_dot_product_attention(q, k, v, attn_mask=mask)))


torch.manual_seed(0)
model = Model()
ids = torch.randint(16, (4, 32))
positions = torch.arange(32).chunk(world)[rank]
labels = F.pad(ids[:, 1:], (0, 1), value=0).chunk(world, 1)[rank]
ids = ids.chunk(world, 1)[rank]
groups = [dist.new_group([number]) for number in range(world)]  # broken
model = DistributedDataParallel(model, process_group=groups[rank])  # broken
# repaired: model = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for _ in range(5):
    loss = F.cross_entropy(model(ids, positions).flatten(0, 1), labels.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
