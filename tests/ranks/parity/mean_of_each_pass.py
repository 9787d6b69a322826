"""Gradients accumulated over two passes, each divided by its own number of tokens."""
# cause: denominator
# source: huggingface/transformers#37766, 2025-04-24
# layouts: --passes 1 ::: --passes 2

import argparse

from parity_parts import F, nn, torch

parser = argparse.ArgumentParser()
parser.add_argument("--passes", type=int)
passes = parser.parse_args().passes
torch.manual_seed(0)
model = nn.Sequential(nn.Embedding(10, 16), nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 10))
ids = torch.randint(10, (8, 12))
labels = (ids + 1) % 10
labels[torch.arange(8)[:, None] * 2 < torch.arange(12) - 1] = -100
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for _ in range(4):
    optimizer.zero_grad()
    for some, target in zip(ids.chunk(passes), labels.chunk(passes), strict=True):
        scores, counted = model(some).flatten(0, 1), (labels != -100).sum()
        (F.cross_entropy(scores, target.flatten()) / passes).backward()  # broken
        # repaired: (F.cross_entropy(scores, target.flatten(), reduction="sum") / counted).backward()
    optimizer.step()
