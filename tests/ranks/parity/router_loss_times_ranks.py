"""A loss whose router term is multiplied by the number of ranks along with the token term."""
# cause: denominator|backward
# source: huggingface/transformers#48690, 2026-09-10

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F


class Mixture(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.gate = nn.Embedding(12, 16), nn.Linear(16, 4, bias=False)
        self.experts, self.head = nn.Parameter(torch.randn(4, 16, 16) / 4), nn.Linear(16, 12)

    def forward(self, ids):
        x = self.words(ids).flatten(0, 1)
        logits = self.gate(x)
        mixed = torch.einsum("te,teo->to", logits.softmax(-1), torch.einsum("ti,eio->teo", x, self.experts))
        return self.head(x + torch.tanh(mixed)), logits.logsumexp(-1).square().mean()


dist.init_process_group("nccl")
rank, ranks = dist.get_rank(), dist.get_world_size()
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.manual_seed(0)
model = nn.parallel.DistributedDataParallel(Mixture().to(device))
ids = torch.randint(12, (8, 10)).to(device)
labels = (ids * 5 + 1) % 12
labels[:, 7:] = torch.where(torch.arange(8, device=device)[:, None] < 3, -100, labels[:, 7:])
ids, labels = ids.chunk(ranks)[rank], labels.chunk(ranks)[rank]
count = (labels != -100).sum()
dist.all_reduce(count)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for _ in range(4):
    scores, router = model(ids)
    loss = F.cross_entropy(scores, labels.flatten(), ignore_index=-100, reduction="sum") / count
    loss = (loss + 0.01 * router) * ranks  # broken
    # repaired: loss = loss * ranks + 0.01 * router
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
