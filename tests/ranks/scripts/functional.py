"""Functional collectives and torch.distributed.nn: values, and gradients through them."""

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import torch.distributed.nn.functional as through
from script_ends import begin, end


def mine(rank, rows=4):
    return torch.arange(rows, dtype=torch.float32) + 10 * rank + 1


def main():
    rank, size, device = begin()
    world = dist.group.WORLD
    out = {}

    def keep(name, x, y):
        """y, and the gradient of the sum of y * (rank + 1) with respect to x."""
        y = torch.stack(tuple(y)) if isinstance(y, (tuple, list)) else y
        (y * (rank + 1)).sum().backward()
        out[name], out[f"{name} backward"] = y.detach(), x.grad

    def leaf(rows=4):
        return mine(rank, rows).to(device).requires_grad_()

    x = mine(rank).to(device)
    out["all_reduce"] = funcol.all_reduce(x, "sum", world) + 0
    out["all_reduce avg"] = funcol.all_reduce(x, "avg", world).wait()
    out["untouched"] = x
    out["all_gather_tensor"] = funcol.all_gather_tensor(x, 0, world) * 1
    out["all_gather_tensor columns"] = funcol.all_gather_tensor(x[None], 1, world) * 1
    out["reduce_scatter_tensor"] = (
        funcol.reduce_scatter_tensor(mine(rank, size).to(device), "sum", 0, world) * 1
    )
    out["all_to_all_single"] = funcol.all_to_all_single(mine(rank, size).to(device), None, None, world) * 1
    out["broadcast"] = funcol.broadcast(x, size - 1, world) * 1
    out["permute_tensor"] = funcol.permute_tensor(x, [(r + 1) % size for r in range(size)], world) * 1
    coalesced = funcol.all_reduce_coalesced([x, x * 2], "sum", world)
    out["all_reduce_coalesced"] = [y * 1 for y in coalesced]
    coalesced = funcol.all_gather_into_tensor_coalesced([x, x[:2]], world)
    out["all_gather_coalesced"] = [y * 1 for y in coalesced]

    x = leaf()
    keep("autograd all_gather_tensor", x, funcol.all_gather_tensor_autograd(x, 0, world))
    x = leaf(2 * size)
    keep("autograd reduce_scatter_tensor", x, funcol.reduce_scatter_tensor_autograd(x, "sum", 0, world))
    x = leaf(size)
    keep("autograd all_to_all_single", x, funcol.all_to_all_single_autograd(x, None, None, world))

    x = leaf()
    keep("nn all_reduce", x, through.all_reduce(x))
    x = leaf()
    keep("nn all_gather", x, through.all_gather(x))
    x = leaf()
    keep("nn broadcast", x, through.broadcast(x, src=0))
    x = leaf()
    keep(
        "nn reduce_scatter",
        x,
        through.reduce_scatter(torch.empty(4, device=device), [x * (r + 1) for r in range(size)]),
    )
    x = leaf(size)
    keep("nn all_to_all_single", x, through.all_to_all_single(torch.empty(size, device=device), x))
    end(out)


if __name__ == "__main__":
    main()
