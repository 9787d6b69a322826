"""Collectives as work that is waited for: in reverse, by future, and several at once under a coalescing manager."""

import torch
import torch.distributed as dist
from script_ends import begin, end


def mine(rank, rows=4):
    return torch.arange(rows, dtype=torch.float32) + 10 * rank + 1


def main():
    rank, size, device = begin()
    out = {}

    xs = [(mine(rank) * k).to(device) for k in range(4)]
    works = [dist.all_reduce(x, async_op=True) for x in xs]
    for work in reversed(works):
        work.wait()
    out["four at once"] = xs
    out["completed"] = all(work.is_completed() for work in works)

    x = mine(rank).to(device)
    future = dist.all_reduce(x, async_op=True).get_future().then(lambda done: done.value()[0] / size)
    out["future"] = future.wait()

    works, got = [], {}
    got["broadcast"] = x = mine(rank).to(device)
    works.append(dist.broadcast(x, src=0, async_op=True))
    got["all_gather"] = pieces = [torch.empty(4, device=device) for _ in range(size)]
    works.append(dist.all_gather(pieces, mine(rank).to(device), async_op=True))
    got["all_gather_into_tensor"] = whole = torch.empty(4 * size, device=device)
    works.append(dist.all_gather_into_tensor(whole, mine(rank).to(device), async_op=True))
    got["reduce_scatter_tensor"] = x = torch.empty(1, device=device)
    works.append(dist.reduce_scatter_tensor(x, mine(rank, rows=size).to(device), async_op=True))
    got["all_to_all_single"] = x = torch.empty(size, device=device)
    works.append(dist.all_to_all_single(x, mine(rank, rows=size).to(device), async_op=True))
    works.append(dist.barrier(async_op=True))
    for work in works:
        work.wait()
    out.update(got)

    # Work that nobody waits for: the device is waited for instead.
    out["device waited for"] = x = mine(rank).to(device)
    dist.all_reduce(x, async_op=True)
    torch.cuda.synchronize()

    # On a stream of one's own, as gradients are overlapped by hand.
    stream = torch.cuda.Stream()
    out["stream"] = x = mine(rank).to(device)
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        dist.all_reduce(x)
    torch.cuda.current_stream().wait_stream(stream)

    xs = [mine(rank).to(device), mine(rank, rows=2).to(device)]
    with dist._coalescing_manager(device=device):
        for x in xs:
            dist.all_reduce(x)
    out["coalesced"] = xs
    wholes = [torch.empty(4 * size, device=device), torch.empty(2 * size, device=device)]
    with dist._coalescing_manager(device=device, async_ops=True) as manager:
        for whole, rows in zip(wholes, (4, 2), strict=True):
            dist.all_gather_into_tensor(whole, mine(rank, rows=rows).to(device))
    manager.wait()
    out["coalesced gathers"] = wholes
    pieces = [torch.empty(1, device=device), torch.empty(2, device=device)]
    with dist._coalescing_manager(device=device):
        for piece in pieces:
            dist.reduce_scatter_tensor(piece, mine(rank, rows=len(piece) * size).to(device))
    out["coalesced scatters"] = pieces
    end(out)


if __name__ == "__main__":
    main()
