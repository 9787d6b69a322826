"""Python objects through collectives, tensors on a GPU among them."""

import torch
import torch.distributed as dist
from script_ends import begin, end


def mine(rank):
    return {"rank": rank, "words": "ab" * rank, "tensor": torch.full((rank + 1,), rank)}


def main():
    rank, size, _ = begin()
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
    end(out)


if __name__ == "__main__":
    main()
