"""The student's functions on ranks, each with a simulated GPU. It knows no expected value."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

from labkit_classroom.sandbox.inside import ranks


def assign_owners(student, cases):
    """Return what ``owners`` returned for each pair of sizes and number of ranks."""
    return [student["owners"](list(sizes), ranks) for sizes, ranks in cases]


def make_optimizers(student, weights, owner, size):
    """Return for every rank the numbers of the parameters that its optimizer has, or None without an optimizer."""
    return ranks.run(student, make_optimizer, [{"weights": weights, "owner": owner}] * size, threads=True)


def make_optimizer(student, weights, owner):
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


def take_steps(student, weights, gradients, owner, rates):
    """Take a step for each of ``gradients``, which has for every rank one for each parameter, or None.

    Return every rank's weights afterwards, and what the ranks called and sent.

    rates   the learning rate of each rank's optimizer, which the other ranks do not know.
    """
    shares = [
        {"weights": weights, "gradients": [each[rank] for each in gradients], "owner": owner, "rate": rate}
        for rank, rate in enumerate(rates)
    ]
    return ranks.run(student, take_own_steps, shares, threads=True)


def take_own_steps(student, weights, gradients, owner, rate):
    model, rank = _model(weights), dist.get_rank()
    own = [one for one, mine in zip(model.parameters(), owner, strict=True) if mine == rank]
    optimizer = torch.optim.SGD(own, lr=rate, momentum=0.5) if own else None
    for each in gradients:
        for parameter, gradient in zip(model.parameters(), each, strict=True):
            parameter.grad = None if gradient is None else gradient.clone().cuda()
        student["step"](model, list(owner), optimizer)
    return [parameter.detach().cpu() for parameter in model.parameters()]


def accumulate(student, weights, parts):
    """Return every rank's whole gradients, its number of forward passes, and the calls."""
    shares = [{"weights": weights, "parts": own} for own in parts]
    return ranks.run(student, accumulate_own, shares, threads=True)


def accumulate_own(student, weights, parts):
    model = nn.Sequential(*map(Unit, weights)).cuda()
    for unit in model:
        fully_shard(unit)
    fully_shard(model)
    runs = []
    model.register_forward_pre_hook(lambda *given: runs.append(1))
    student["accumulate"](model, parts.cuda(), lambda output: output.square().mean())
    gradients = [parameter.grad for parameter in model.parameters()]
    return [None if one is None else one.full_tensor().cpu() for one in gradients], len(runs)


class Unit(nn.Linear):
    """A layer that subtracts the mean over the batch, so joined batches have other outputs than single ones."""

    def __init__(self, weight):
        super().__init__(weight.shape[1], weight.shape[0], bias=False)
        with torch.no_grad():
            self.weight.copy_(weight)

    def forward(self, x):
        output = super().forward(x)
        return output - output.mean(0)


def _model(weights):
    return nn.ParameterList([nn.Parameter(weight.clone()) for weight in weights]).cuda()
