"""Answers as students write them: question, the parts that are lost and by which hint, the cell."""


def owners(order="sorted(range(len(sizes)), key=lambda at: -sizes[at])", whom="held.index(min(held))"):
    return f"""def owners(sizes, ranks):
    held, owner = [0] * ranks, [0] * len(sizes)
    for at in {order}:
        owner[at] = {whom}
        held[owner[at]] += sizes[at]
    return owner
"""


def state(which="mine == dist.get_rank()", returns="make(own) if own else None"):
    return f"""def own_optimizer(model, owner, make):
    own = [weight for weight, mine in zip(model.parameters(), owner) if {which}]
    return {returns}
"""


def step(reduce="dist.reduce(weight.grad, mine)", divided="weight.grad /= dist.get_world_size()",
         sends="dist.broadcast(weight.data, mine)", used="weight.grad is not None"):  # fmt: skip
    return f"""def step(model, owner, optimizer):
    used = [(weight, mine) for weight, mine in zip(model.parameters(), owner) if {used}]
    for weight, mine in used:
        {reduce}
        {divided}
    if optimizer is not None:
        optimizer.step()
    for weight, mine in used:
        {sends}
"""


def parts(switch="model.set_requires_gradient_sync(number == len(parts))", loss="loss(model(part)) / len(parts)",
          before="pass"):  # fmt: skip
    return f"""def accumulate(model, parts, loss):
    {before}
    for number, part in enumerate(parts, 1):
        {switch}
        ({loss}).backward()
"""


WRONG = {
    "in turn": ("owners", {"large": "in-turn", "edges": "in-turn"}, owners("range(len(sizes))", "at % ranks")),
    "as they come": ("owners", {"large": "as-they-come", "edges": "as-they-come"}, owners("range(len(sizes))")),
    "a dict of owners": ("owners", {"large": "kind", "edges": "kind"},
        owners().replace("return owner", "return dict(enumerate(owner))")),
    "ranks from one": ("owners", {"large": "no-such", "edges": "no-such"},
        owners().replace("return owner", "return [one + 1 for one in owner]")),
    "all parameters": ("state", {"own": "everything", "nothing": "everything"}, state("True")),
    "an empty optimizer": ("state", {"nothing": "raised"}, state(returns="make(own)")),
    "copies": ("state", {"own": "other-parameters", "nothing": "other-parameters"},
        state(returns="make([weight.detach().clone() for weight in own]) if own else None")),
    "another optimizer": ("state", {"own": "not-made", "nothing": "not-made"},
        state(returns="torch.optim.SGD(own, lr=0.1) if own else None")),
    "nothing is reduced": ("step", {"weights": "own-gradient", "no_gradient": "own-gradient", "traffic": "own-gradient"},
        step(reduce="pass", divided="pass")),
    "the sum": ("step", {"weights": "sum", "no_gradient": "sum", "traffic": "sum"}, step(divided="pass")),
    "nothing is sent": ("step", {"weights": "not-sent", "no_gradient": "not-sent", "traffic": "not-sent"},
        step(sends="pass")),
    "an all-reduce and a broadcast": ("step", {"traffic": "bytes"}, step(reduce="dist.all_reduce(weight.grad)")),
    "only the owner takes part": ("step", {"weights": "stuck", "no_gradient": "stuck", "traffic": "stuck"},
        step(reduce="mine != dist.get_rank() or dist.reduce(weight.grad, mine)")),
    "every parameter has a gradient": ("step", {"no_gradient": "raised"}, step(used="True")),
    "ZeroRedundancyOptimizer": ("step", {"weights": "raised", "no_gradient": "raised", "traffic": "raised"},
        """def step(model, owner, optimizer):
    from torch.distributed.optim import ZeroRedundancyOptimizer
    ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=1.0).step()
"""),
    "no switch": ("parts", {"reduces_once": "each"}, parts(switch="pass")),
    "never": ("parts", {"mean": "never", "reduces_once": "never"}, parts(switch="model.set_requires_gradient_sync(False)")),
    "the sum of the parts": ("parts", {"mean": "sum", "reduces_once": "sum"}, parts(loss="loss(model(part))")),
    "the first part reduces": ("parts", {"mean": "gradient", "reduces_once": "gradient"},
        parts(switch="model.set_requires_gradient_sync(number == 1)")),
    "all parts at once": ("parts", {"mean": "runs", "reduces_once": "runs"}, parts(before="parts = parts.flatten(0, 1)[None]")),
}  # fmt: skip
