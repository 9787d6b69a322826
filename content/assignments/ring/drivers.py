"""The student's functions on ranks in one process, each with a simulated GPU. It knows no expected value."""

from torch import nn

from ...exercises.on_ranks import on_ranks


def changed(student, name, given):
    """Calls the function ``name`` on as many ranks as there are tensors ``given``, each with its own.

    Gives what is in the tensors afterwards, and what the ranks called and sent.
    """

    def work(tensor):
        student[name](tensor)
        return tensor

    return _told(on_ranks(work, len(given), [(tensor,) for tensor in given]))


def averaged(student, weights, gradients):
    """Calls ``average`` on as many ranks as there are lists of ``gradients``, one for each parameter or None."""

    def work(*own):
        model = nn.ParameterList([nn.Parameter(weight.clone()) for weight in weights]).cuda()
        for parameter, gradient in zip(model, own, strict=True):
            parameter.grad = gradient
        student["average"](model)
        return [parameter.grad for parameter in model]

    return _told(on_ranks(work, len(gradients), gradients))


def _told(ran):
    stuck = []
    if ran.failure is not None:
        if not ran.failure.hangs:
            raise ran.failure.error
        stuck = [line.strip() for line in str(ran.failure.error).splitlines() if line.startswith("  rank")]
    ranks = range(len(ran.results))
    return {
        "results": ran.results,
        "called": ran.called(),
        "sent": [ran.sent(rank) for rank in ranks],
        "messages": [ran.count("send", rank) for rank in ranks],
        "to": sorted({event.ranks for event in ran.events if event.name == "send"}),
        "stuck": stuck,
    }
