"""Every collective, in place, as lists and as one tensor, by all the operations and several dtypes."""

import torch
import torch.distributed as dist
from script_ends import begin, end


def mine(rank, rows=4, dtype=torch.float32):
    return (torch.arange(rows) + 10 * rank + 1).to(dtype)


def main():
    rank, size, device = begin()
    out = {}

    for name in ("SUM", "AVG", "PRODUCT", "MIN", "MAX"):
        out[f"all_reduce {name}"] = x = mine(rank).to(device)
        dist.all_reduce(x, op=getattr(dist.ReduceOp, name))
    for dtype in (torch.int64, torch.uint8, torch.float64, torch.bfloat16, torch.float16):
        out[f"all_reduce {dtype}"] = x = mine(rank, dtype=dtype).to(device)
        dist.all_reduce(x)
    out["all_reduce bool"] = x = torch.tensor([rank == 0, False, True], device=device)
    dist.all_reduce(x)
    out["all_reduce complex"] = x = torch.complex(mine(rank), -mine(rank)).to(device)
    dist.all_reduce(x)
    out["all_reduce premultiplied"] = x = mine(rank).to(device)
    dist.all_reduce(x, op=dist._make_nccl_premul_sum(0.5))
    out["all_reduce empty"] = x = torch.empty(0, device=device)
    dist.all_reduce(x)

    last = size - 1
    out["broadcast"] = x = mine(rank).to(device)
    dist.broadcast(x, src=last)
    x = mine(rank).to(device)
    dist.reduce(x, dst=last)
    if rank == last:  # what the others then hold is not defined
        out["reduce"] = x
    out["all_gather"] = pieces = [torch.empty(4, device=device) for _ in range(size)]
    dist.all_gather(pieces, mine(rank).to(device))
    out["all_gather uneven"] = pieces = [torch.empty(r + 1, device=device) for r in range(size)]
    dist.all_gather(pieces, mine(rank, rows=rank + 1).to(device))
    out["all_gather_into_tensor"] = whole = torch.empty(4 * size, device=device)
    dist.all_gather_into_tensor(whole, mine(rank).to(device))
    out["all_gather_into_tensor stacked"] = whole = torch.empty(size, 4, device=device)
    dist.all_gather_into_tensor(whole, mine(rank).to(device))
    pieces = [torch.empty(4, device=device) for _ in range(size)] if rank == 0 else None
    dist.gather(mine(rank).to(device), pieces, dst=0)
    if rank == 0:
        out["gather"] = pieces
    out["scatter"] = x = torch.empty(4, device=device)
    dist.scatter(x, [mine(r).to(device) for r in range(size)] if rank == last else None, src=last)
    out["reduce_scatter"] = x = torch.empty(4, device=device)
    dist.reduce_scatter(x, [mine(rank + r).to(device) for r in range(size)])
    out["reduce_scatter_tensor"] = x = torch.empty(2, device=device)
    dist.reduce_scatter_tensor(x, mine(rank, rows=2 * size).to(device))
    out["reduce_scatter_tensor AVG"] = x = torch.empty(2, device=device)
    dist.reduce_scatter_tensor(x, mine(rank, rows=2 * size).to(device), op=dist.ReduceOp.AVG)
    out["all_to_all_single"] = x = torch.empty(size, device=device)
    dist.all_to_all_single(x, mine(rank, rows=size).to(device))
    out["all_to_all_single uneven"] = x = torch.empty(size * (rank + 1), device=device)
    rows = mine(rank, rows=sum(range(1, size + 1))).to(device)
    dist.all_to_all_single(x, rows, [rank + 1] * size, list(range(1, size + 1)))
    out["all_to_all"] = pieces = [torch.empty(2, device=device) for _ in range(size)]
    dist.all_to_all(pieces, [mine(rank + 100 * r, rows=2).to(device) for r in range(size)])
    dist.barrier()
    end(out)


if __name__ == "__main__":
    main()
