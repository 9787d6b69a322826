"""Half precision against float32 on simulated GPUs: forward and backward, pure and by autocast.

python benchmarks/halves.py
"""

from __future__ import annotations

import copy

import torch
from pairs import ratio, report
from torch import nn

import labkit


class Transformer(nn.Module):
    """An embedding, two layers, a head."""

    def __init__(self, dropout):
        super().__init__()
        self.embedding, self.head = nn.Embedding(100, 64), nn.Linear(64, 100)
        layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, dropout=dropout)
        self.layers = nn.TransformerEncoder(layer, 2)

    def forward(self, ids):
        return self.head(self.layers(self.embedding(ids)))


def convolutions():
    """Four convolutions with what usually stands between them."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1, stride=2),
        nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 32, 3), nn.GELU(), nn.Conv2d(32, 32, 3, groups=4),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10),
    )  # fmt: skip


def step(model, x, dtype, cast, parallel):
    """A forward and a backward, as a function."""
    model = copy.deepcopy(model).cuda()
    x = x.cuda()
    if not cast:
        model, x = model.to(dtype), x.to(dtype) if x.is_floating_point() else x
    if parallel:
        model = nn.DataParallel(model, [0, 1])

    def run():
        with torch.autocast("cuda", dtype=dtype if cast else None, enabled=cast):
            y = model(x)
        y.float().square().mean().backward()
        model.zero_grad()

    return run


def main():
    torch.set_num_threads(1)
    models = {
        "convolutions": (convolutions(), torch.rand(16, 3, 32, 32)),
        "a transformer": (Transformer(0.1), torch.randint(0, 100, (8, 32))),
        "a transformer without dropout": (Transformer(0.0), torch.randint(0, 100, (8, 32))),
    }
    with labkit.simulate(gpus=2):
        for name, (model, x) in models.items():
            for parallel in (False, True):
                single = step(model, x, torch.float32, False, parallel)
                for dtype in (torch.float16, torch.bfloat16):
                    for cast in (False, True):
                        how = f"{name}, {str(dtype)[6:]}{', autocast' * cast}{', DataParallel' * parallel}"
                        found = ratio(step(model, x, dtype, cast, parallel), single, pairs=11)
                        report(how, found, 1.5)


if __name__ == "__main__":
    main()
