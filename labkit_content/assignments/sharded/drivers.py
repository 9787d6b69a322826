"""The student's functions on ranks in one process, each with a simulated GPU. It knows no expected value."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

import labkit


def owned(student, cases):
    """Gives what ``owners`` returned for each pair of sizes and number of ranks."""
    return [student["owners"](list(sizes), ranks) for sizes, ranks in cases]


def state(student, weights, owner, ranks):
    """Gives for every rank what ``own_optimizer`` made of which parameters: their numbers, or None."""

    def work():
        model, made = _model(weights), []

        def make(parameters):
            optimizer = torch.optim.Adam(parameters)
            made.append(optimizer)
            return optimizer

        found = student["own_optimizer"](model, list(owner), make)
        if found is None:
            return None
        held = [one for group in found.param_groups for one in group["params"]]
        numbers = {id(one): at for at, one in enumerate(model.parameters())}
        return {"ours": any(found is one for one in made), "held": [numbers.get(id(one), -1) for one in held]}

    return _told(ranks, work)


def stepped(student, weights, gradients, owner):
    """Takes a step with momentum for each of ``gradients``, which has for every rank one for each parameter, or None.

    Gives every rank's weights afterwards, and what the ranks called and sent.
    """

    def work():
        model, rank = _model(weights), dist.get_rank()
        own = [one for one, mine in zip(model.parameters(), owner, strict=True) if mine == rank]
        optimizer = torch.optim.SGD(own, lr=1.0, momentum=0.5) if own else None
        for each in gradients:
            for parameter, gradient in zip(model.parameters(), each[rank], strict=True):
                parameter.grad = None if gradient is None else gradient.clone().cuda()
            student["step"](model, list(owner), optimizer)
        return [parameter.detach().cpu() for parameter in model.parameters()]

    return _told(len(gradients[0]), work)


def accumulated(student, weights, parts):
    """Gives every rank's whole gradients, how often the model ran, and how often gradients were reduced."""

    def work():
        model = nn.Sequential(*(_linear(weight) for weight in weights)).cuda()
        for layer in model:
            fully_shard(layer)
        fully_shard(model)
        runs = []
        model.register_forward_pre_hook(lambda *given: runs.append(1))
        student["accumulate"](model, parts[dist.get_rank()].cuda(), lambda output: output.square().mean())
        gradients = [parameter.grad for parameter in model.parameters()]
        return [None if one is None else one.full_tensor().cpu() for one in gradients], len(runs)

    return _told(len(parts), work)


def _model(weights):
    return nn.ParameterList([nn.Parameter(weight.clone()) for weight in weights]).cuda()


def _linear(weight):
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    with torch.no_grad():
        layer.weight.copy_(weight)
    return layer


def _told(count, work):
    """Runs ``work`` on ``count`` ranks; tells its results, or who waits, and what rank 0 called and all sent."""
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
    return {
        "results": results,
        "calls": [(event.name, event.nbytes) for event in events if event.rank == 0],
        "stuck": stuck,
    }
