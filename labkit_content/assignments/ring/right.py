"""Solve the earlier questions of the ring. Later questions get the source of this module."""

import torch
import torch.distributed as dist


def pass_around(chunks: torch.Tensor, first: int, adds: bool) -> None:
    """Run half of a ring: each rank passes on the chunk that has just arrived, beginning with ``first`` + rank."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for at in range(rank + first, rank + first - ranks + 1, -1):
        box = torch.empty_like(chunks[0])
        there = dist.P2POp(dist.isend, chunks[at % ranks], (rank + 1) % ranks)
        here = dist.P2POp(dist.irecv, box, (rank - 1) % ranks)
        for work in dist.batch_isend_irecv([there, here]):
            work.wait()
        chunks[(at - 1) % ranks] = chunks[(at - 1) % ranks] + box if adds else box


def reduce_scatter(chunks: torch.Tensor) -> None:
    pass_around(chunks, 0, True)


def all_gather(chunks: torch.Tensor) -> None:
    pass_around(chunks, 1, False)


def all_reduce(x: torch.Tensor) -> None:
    ranks = dist.get_world_size()
    chunks = torch.nn.functional.pad(x.flatten(), (0, -x.numel() % ranks)).reshape(ranks, -1).clone()
    reduce_scatter(chunks)
    all_gather(chunks)
    x.copy_(chunks.flatten()[: x.numel()].reshape(x.shape))
