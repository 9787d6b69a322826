"""Tensor and sequence parallelism: each rank normalises its part of the words, and keeps that part's gradient."""
# cause: reduction
# source: NVIDIA/Megatron-LM#1446, 2025-03-04

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

dist.init_process_group("nccl")
rank, ranks = dist.get_rank(), dist.get_world_size()
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.mix = nn.Embedding(12, 16), nn.Linear(16, 16)
        self.final_layernorm, self.head = nn.LayerNorm(16), nn.Linear(16, 12, bias=False)

    def forward(self, ids):
        part = ids.chunk(ranks, 1)[rank]
        x = self.words(part)
        return self.head(self.final_layernorm(x + torch.tanh(self.mix(x))))


torch.manual_seed(0)
model = Model().to(device)
ids = torch.randint(12, (4, 16)).to(device)
labels = ((ids + 3) % 12).chunk(ranks, 1)[rank]
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(ids).flatten(0, 1), labels.flatten(), reduction="sum") / ids.numel()
    loss.backward()
    for name, parameter in model.named_parameters():
        if "layernorm" in name:  # broken
            continue  # broken
        dist.all_reduce(parameter.grad)
    optimizer.step()
