"""The student's functions on ranks in one process, each with a simulated GPU. It knows no expected value."""

from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn

import labkit


def changed(student, name, given, right=""):
    """Calls the function ``name`` on as many ranks as there are tensors ``given``, each with its own.

    Gives what is in the tensors afterwards, and what the ranks called and sent.

    right   source of functions that stand behind their names meanwhile.
    """

    def work():
        tensor = given[dist.get_rank()].clone().cuda()
        student[name](tensor)
        return tensor.cpu()

    with _given(student[name], right):
        return _told(len(given), work)


def averaged(student, weights, gradients, right):
    """Calls ``average`` on as many ranks as there are lists of ``gradients``, one for each parameter or None."""

    def work():
        model = nn.ParameterList([nn.Parameter(weight.clone()) for weight in weights]).cuda()
        for parameter, gradient in zip(model, gradients[dist.get_rank()], strict=True):
            parameter.grad = None if gradient is None else gradient.clone().cuda()
        student["average"](model)
        return [None if parameter.grad is None else parameter.grad.cpu() for parameter in model]

    with _given(student["average"], right):
        return _told(len(gradients), work)


@contextmanager
def _given(function, source):
    """Inside, the functions that ``source`` defines stand behind the names that ``function`` looks up."""
    made = {"torch": torch, "dist": dist}
    exec(source, made)
    given = {name: one for name, one in made.items() if callable(one) and name != "around"}
    names = function.__globals__
    before = {name: names[name] for name in given if name in names}
    names.update(given)
    try:
        yield
    finally:
        for name in given:
            names.pop(name, None)
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
