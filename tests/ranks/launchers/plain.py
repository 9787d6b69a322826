"""A script for torchrun: DDP, each rank with its own rows."""

import os

import torch
import torch.distributed as dist
from torch import nn


def main():
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    model = nn.parallel.DistributedDataParallel(nn.Linear(4, 2).cuda())
    torch.manual_seed(dist.get_rank())
    model(torch.randn(8, 4, device="cuda")).sum().backward()
    print(
        f"rank {dist.get_rank()} of {dist.get_world_size()}: {model.module.bias.grad.tolist()}\n",
        end="",
        flush=True,
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
