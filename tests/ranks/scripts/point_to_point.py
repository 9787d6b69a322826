"""Messages from rank to rank: a ring, a chain, both ways at once, batches, and objects."""

import torch
import torch.distributed as dist
from script_ends import begin, end


def mine(rank):
    return torch.arange(3, dtype=torch.float32) + 10 * rank


def main():
    rank, size, device = begin()
    following, before = (rank + 1) % size, (rank - 1) % size
    out = {}

    # A chain: each adds its own to what comes.
    x = mine(rank).to(device)
    if rank > 0:
        got = torch.empty_like(x)
        dist.recv(got, src=before)
        x = x + got
    if rank < size - 1:
        dist.send(x, dst=following)
    out["chain"] = x

    # A ring by pairs that take turns.
    got = torch.empty(3, device=device)
    if rank % 2 == 0:
        dist.send(mine(rank).to(device), following)
        dist.recv(got, before)
    else:
        dist.recv(got, before)
        dist.send(mine(rank).to(device), following)
    out["ring"] = got

    got = torch.empty(3, device=device)
    requests = dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, mine(rank).to(device), following), dist.P2POp(dist.irecv, got, before)]
    )
    for request in requests:
        request.wait()
    out["batch"] = got

    # Everybody to everybody, by two batches of messages of different lengths.
    inbox = [torch.empty(r + 1, device=device) for r in range(size)]
    operations = [
        dist.P2POp(dist.isend, torch.full((rank + 1,), float(rank), device=device), r) for r in range(size)
    ]
    operations += [dist.P2POp(dist.irecv, inbox[r], r) for r in range(size)]
    operations = [op for op in operations if op.peer != rank]
    for request in dist.batch_isend_irecv(operations):
        request.wait()
    inbox[rank].fill_(-1)
    out["everybody"] = inbox

    # Pairs both ways.
    partner = rank ^ 1
    pair = torch.empty(3, device=device)
    sending = mine(rank).to(device)
    if rank < partner:
        first, second = dist.isend(sending, partner), dist.irecv(pair, partner)
    else:
        first, second = dist.irecv(pair, partner), dist.isend(sending, partner)
    first.wait()
    second.wait()
    out["pairs"] = pair

    if rank == 0:
        dist.send_object_list([{"from": 0}, "words"], dst=1, device=device)
    elif rank == 1:
        objects = [None, None]
        out["sender"] = dist.recv_object_list(objects, src=0, device=device)
        out["objects"] = objects
    end(out)


if __name__ == "__main__":
    main()
