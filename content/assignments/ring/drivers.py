"""The student's functions on ranks in one process, each with a simulated GPU. It knows no expected value."""

from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn

import labkit


def changed(student, name, given):
    """Calls the function ``name`` on as many ranks as there are tensors ``given``, each with its own.

    Gives what is in the tensors afterwards, and what the ranks called and sent.
    """

    def work():
        tensor = given[dist.get_rank()].clone().cuda()
        student[name](tensor)
        return tensor.cpu()

    with _right_ones(student, name):
        return _told(len(given), work)


def averaged(student, weights, gradients):
    """Calls ``average`` on as many ranks as there are lists of ``gradients``, one for each parameter or None."""

    def work():
        model = nn.ParameterList([nn.Parameter(weight.clone()) for weight in weights]).cuda()
        for parameter, gradient in zip(model, gradients[dist.get_rank()], strict=True):
            parameter.grad = None if gradient is None else gradient.clone().cuda()
        student["average"](model)
        return [None if parameter.grad is None else parameter.grad.cpu() for parameter in model]

    with _right_ones(student, "average"):
        return _told(len(gradients), work)


def _around(chunks, first, adds):
    """Half of a ring: in each step every rank passes on what it has just received, chunk ``first`` + rank to begin."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for at in range(rank + first, rank + first - ranks + 1, -1):
        box = torch.empty_like(chunks[0])
        sending = dist.isend(chunks[at % ranks], (rank + 1) % ranks)
        dist.recv(box, (rank - 1) % ranks)
        sending.wait()
        chunks[(at - 1) % ranks] = chunks[(at - 1) % ranks] + box if adds else box


def _reduce_scatter(chunks):
    _around(chunks, 0, True)


def _all_gather(chunks):
    _around(chunks, 1, False)


def _all_reduce(x):
    ranks = dist.get_world_size()
    chunks = nn.functional.pad(x.flatten(), (0, -x.numel() % ranks)).reshape(ranks, -1).clone()
    _reduce_scatter(chunks)
    _all_gather(chunks)
    x.copy_(chunks.flatten()[: x.numel()].reshape(x.shape))


@contextmanager
def _right_ones(student, name):
    """Inside, correct versions of what the questions before ask for stand behind their names."""
    right = {"reduce_scatter": _reduce_scatter, "all_gather": _all_gather, "all_reduce": _all_reduce}
    order = [*right, "average"]
    given = {one: right[one] for one in order[: order.index(name)]} if name not in order[:2] else {}
    names = student[name].__globals__
    before = {one: names[one] for one in given if one in names}
    names.update(given)
    try:
        yield
    finally:
        for one in given:
            names.pop(one, None)
        names.update(before)


def _told(count, work):
    """Runs ``work`` on ``count`` ranks; tells its results, or who waits, and what was called and sent."""
    results, stuck = [], []
    torch.manual_seed(0)
    with labkit.ranks(count) as ranks:
        try:
            results = list(ranks.run(work))
        except RuntimeError as error:
            if not hasattr(error, "report"):  # the student's own; of what hangs labkit reports
                raise
            stuck = [line.strip() for line in str(error).splitlines() if line.startswith("  rank")]
        events = [event for event in ranks.trace if event.phase in ("collective", "stuck")]
    sends = [event for event in events if event.name == "send" and event.nbytes]
    return {
        "results": results,
        "called": sorted({event.name for event in events}),
        "sent": [sum(event.nbytes for event in sends if event.rank == rank) for rank in range(count)],
        "messages": [sum(event.rank == rank for event in sends) for rank in range(count)],
        "to": sorted({event.ranks for event in sends}),
        "stuck": stuck,
    }
