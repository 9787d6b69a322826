"""A script that starts its processes itself."""

import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def work(rank, world, port):
    address = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("nccl", init_method=address, rank=rank, world_size=world)
    torch.cuda.set_device(rank)
    x = torch.ones(2, device="cuda") * (rank + 1)
    dist.all_reduce(x)
    print(f"rank {rank} of {world}: {x.tolist()}\n", end="", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(work, (2, port), 2)
