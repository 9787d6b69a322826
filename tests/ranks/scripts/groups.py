"""Groups: halves, neighbours, a split, a gloo one beside nccl, and what each member is called there."""

import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist


def main():
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device, timeout=timedelta(minutes=5))
    out = {"backend": dist.get_backend()}
    half = size // 2

    # Everybody makes both groups; each is a member of one.
    halves = [dist.new_group(list(range(half))), dist.new_group(list(range(half, size)))]
    own = halves[rank >= half]
    out["membership"] = [dist.get_rank(group) for group in halves]
    out["sum in a half"] = x = torch.tensor([float(rank)], device=device)
    dist.all_reduce(x, group=own)
    out["ranks of the half"] = dist.get_process_group_ranks(own)
    out["first of the half"] = x = torch.tensor([float(rank)], device=device)
    dist.broadcast(x, group=own, group_src=0)
    out["last of the half"] = x = torch.tensor([float(rank)], device=device)
    dist.broadcast(x, src=dist.get_global_rank(own, half - 1), group=own)

    neighbours, every = dist.new_subgroups(group_size=2)
    out["neighbours"] = x = torch.tensor([float(rank)], device=device)
    dist.all_reduce(x, group=neighbours)
    out["how many"] = len(every)
    columns, _ = dist.new_subgroups_by_enumeration([list(range(k, size, 2)) for k in range(2)])
    out["columns"] = dist.get_process_group_ranks(columns)

    out["both in turn"] = x = torch.tensor([float(rank)], device=device)
    for group in (neighbours, columns):
        dist.all_reduce(x, group=group)

    apart = dist.split_group(split_ranks=[list(range(half)), list(range(half, size))])
    out["split"] = x = torch.tensor([float(rank)], device=device)
    dist.all_reduce(x, group=apart)
    out["split size"] = apart.size()

    # A second group of everybody, over gloo: for tensors on the CPU, and for a barrier that names who is missing.
    host = dist.new_group(backend="gloo")
    out["host"] = x = torch.tensor([rank + 1])
    dist.all_reduce(x, group=host)
    dist.monitored_barrier(host, timeout=timedelta(minutes=1))
    out["host backend"] = dist.get_backend(host)
    dist.destroy_process_group(host)

    # A group of one.
    alone = [dist.new_group([r]) for r in range(size)][rank]
    out["alone"] = x = torch.tensor([float(rank)], device=device)
    dist.all_reduce(x, group=alone)
    dist.barrier(device_ids=[device.index])
    torch.save(out, f"{sys.argv[1]}/{rank}.pt")
    dist.destroy_process_group()
    assert not dist.is_initialized()


if __name__ == "__main__":
    main()
