# cause: forward
# layouts: 1, 2
# source: vllm-project/speculators#871, 2026-08-02

"""Context parallelism: positions are counted from 0 on each piece of the sequence."""

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

    def forward(self, ids):
        length = ids.shape[1]
        positions = torch.arange(length)  # broken
        # repaired: positions = rank * length + torch.arange(length)
        x = self.inner(ids) + self.place(positions)
        q, k, v = self.qkv(x).chunk(3, -1)
        k, v = (torch.cat(list(all_gather(t.contiguous())), 1) for t in (k, v))
        mask = torch.ones(length, k.shape[1]).tril(rank * length).bool()
        return self.head(x + self.out(F.scaled_dot_product_attention(q, k, v, attn_mask=mask)))


torch.manual_seed(0)
model = Model()
ids = torch.randint(16, (4, 32))
labels = F.pad(ids[:, 1:], (0, 1), value=0).chunk(world, 1)[rank]
ids = ids.chunk(world, 1)[rank]
model = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for _ in range(5):
    loss = F.cross_entropy(model(ids).flatten(0, 1), labels.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
