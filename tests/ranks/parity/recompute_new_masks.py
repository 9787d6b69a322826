# cause: random
# layouts: --recompute 0 ::: --recompute 1
# source: allenai/OLMo-core#828, 2026-08-14

"""Blocks with dropout are recomputed in backward, and draw new masks there."""

import argparse

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

parser = argparse.ArgumentParser()
parser.add_argument("--recompute", type=int, default=0)
options = parser.parse_args()


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(32), nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, x):
        return x + F.dropout(self.down(F.gelu(self.up(self.norm(x)))), 0.1)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.head = nn.Embedding(16, 32), nn.Linear(32, 16)
        self.blocks = nn.ModuleList(Block() for _ in range(4))

    def forward(self, x):
        x = self.inner(x)
        for block in self.blocks:
            keep = {"preserve_rng_state": False}  # broken
            # repaired: keep = {}
            x = checkpoint(block, x, use_reentrant=False, **keep) if options.recompute else block(x)
        return self.head(x)


torch.manual_seed(0)
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
x = torch.randint(16, (8, 16))
for _ in range(5):
    loss = F.cross_entropy(model(x).flatten(0, 1), ((x * 3 + 1) % 16).flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
