"""A script for deepspeed's own launcher: ZeRO 3 by its engine, with PyTorch's optimizer."""

import deepspeed
import torch
import torch.distributed as dist
from torch import nn

CONFIG = {
    "train_micro_batch_size_per_gpu": 4,
    "zero_optimization": {"stage": 3},
    "zero_allow_untested_optimizer": True,
}


def main():
    deepspeed.init_distributed()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=CONFIG)
    x, losses = torch.randn(4, 8, device=engine.device), []
    for _ in range(3):
        loss = engine(x).pow(2).mean()
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    better = losses == sorted(losses, reverse=True) and losses[0] > losses[-1]
    told = f"{len(losses)} steps, better {better}, {engine.device}"
    print(f"rank {dist.get_rank()} of {dist.get_world_size()}: {told}\n", end="", flush=True)


if __name__ == "__main__":
    main()
