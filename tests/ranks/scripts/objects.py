"""Python objects through collectives, tensors on a GPU among them."""

import os
import sys

import torch
import torch.distributed as dist


def mine(rank):
    return {"rank": rank, "words": "ab" * rank, "tensor": torch.full((rank + 1,), rank)}


def main():
    dist.init_process_group("nccl")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    out = {}

    everybody = [None] * size
    dist.all_gather_object(everybody, mine(rank))
    out["all_gather_object"] = everybody

    collected = [None] * size if rank == size - 1 else None
    dist.gather_object(mine(rank), collected, dst=size - 1)
    out["gather_object"] = collected

    objects = [mine(7), "said by rank 0", None] if rank == 0 else [None] * 3
    dist.broadcast_object_list(objects, src=0)
    out["broadcast_object_list"] = objects

    received = [None]
    dist.scatter_object_list(received, [mine(r) for r in range(size)] if rank == 0 else None, src=0)
    out["scatter_object_list"] = received

    # A tensor on the sender's GPU comes out there, as torch.load would put it.
    places = [None] * size
    dist.all_gather_object(places, torch.ones(1, device="cuda"))
    out["places"] = [str(x.device) for x in places]
    torch.save(out, f"{sys.argv[1]}/{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
