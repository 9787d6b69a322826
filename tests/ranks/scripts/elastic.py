"""What torchrun tells each rank, the record decorator, and a launch without an explicit backend or rank."""

import argparse
import os
import sys

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

NAMES = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "ROLE_RANK",
    "ROLE_WORLD_SIZE",
    "ROLE_NAME",
)


@record
def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--epochs", type=int, default=1)
    options = parser.parse_args()
    out = {"environ": {name: os.environ.get(name) for name in NAMES}, "epochs": options.epochs}
    out["torchelastic"] = dist.is_torchelastic_launched()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group(init_method="env://")  # nccl, as there are GPUs
    out["backend"] = dist.get_backend()
    dist.destroy_process_group()
    dist.init_process_group("cpu:gloo,cuda:nccl")
    rank = dist.get_rank()
    out["ranks"] = (
        rank,
        dist.get_world_size(),
        dist.get_node_local_rank(),
        dist.get_default_backend_for_device("cuda"),
    )
    out["device"] = str(torch.empty(1, device="cuda").device)
    out["gpus"] = torch.cuda.device_count()
    out["main"] = sys.modules["__main__"].__dict__.get("main") is not None
    x = torch.tensor([1.0], device="cuda")
    for _ in range(options.epochs):
        dist.all_reduce(x)
    out["sum"] = x
    host = torch.tensor([rank])
    dist.all_reduce(host)
    out["host"] = host
    os.environ["ONLY_MINE"] = str(rank)
    dist.barrier()
    out["mine"] = int(os.environ["ONLY_MINE"])
    torch.save(out, f"{options.out}/{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
