"""Right and wrong answers to the exercises of lesson 22, tried with those of the others in test_answers.py."""

from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as differentiable
from torch.distributed._functional_collectives import all_to_all_single_autograd

from tools.author import sync

CELLS = {cell.id: cell.source for cell in
         sync.read(Path(__file__).parents[2] / "notebooks", "en", "22_experts").cells}  # fmt: skip


def of_lesson(*cells):
    """What cells of the lesson define, without their checks."""
    made = {"torch": torch, "dist": dist}
    exec("\n".join(CELLS[cell].partition("\ncheck(")[0] for cell in cells), made)
    return made


LESSON = of_lesson("exchange", "padded", "dispatch", "finish", "ends", "mixture")
exchange = LESSON["Exchange"].apply


def sizes(expert):
    give = expert.bincount(minlength=dist.get_world_size())
    get = torch.empty_like(give)
    dist.all_to_all_single(get, give)
    return give.tolist(), get.tolist()


def dispatched(there=exchange, back=exchange, turned=False, ordered=True, early=False, late=True, empty=True,
               undo=torch.argsort):  # fmt: skip
    """A ``dispatch``: exchanges, swapped sizes, the order restored, the score before and after, zero rows called."""

    def dispatch(x, expert, score, compute):
        order = expert.argsort()
        give, get = sizes(expert)
        x = x * score[:, None] if early else x
        rows = there(x[order], *((get, give) if turned else (give, get)))
        made = compute(rows) if empty or len(rows) else torch.empty(0, x.shape[1], device="cuda")
        made = back(made, get, give)
        made = made[undo(order)] if ordered else made
        return score[:, None] * made if late else made

    return dispatch


def misplaced(x, expert, score, compute):
    """The order is restored after the scores."""
    order = expert.argsort()
    one = dispatched(ordered=False)(x, expert, score, compute)
    return one[order.argsort()]


def bare(rows, give, get):
    found = rows.new_empty(sum(get), rows.shape[1])
    dist.all_to_all_single(found, rows.detach().contiguous(), get, give)
    return found


def pytorchs(rows, give, get):
    return all_to_all_single_autograd(rows.contiguous(), get, give, dist.group.WORLD) + 0


def by_lists(x, expert, score, compute):
    """An all-to-all of lists of tensors, the counts gathered from all."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    give = expert.bincount(minlength=ranks)
    every = [torch.empty_like(give) for _ in range(ranks)]
    dist.all_gather(every, give)
    get = [int(one[rank]) for one in every]
    parts = [x[expert == one] for one in range(ranks)]
    into = [x.new_empty(count, x.shape[1]) for count in get]
    rows = torch.cat(differentiable.all_to_all(into, parts))
    into = [torch.empty_like(one) for one in parts]
    found = torch.cat(differentiable.all_to_all(into, list(compute(rows).split(get))))
    places = torch.cat([(expert == one).nonzero().flatten() for one in range(ranks)])
    return torch.zeros_like(x).index_copy(0, places, found) * score[:, None]


def to_all(x, expert, score, compute):
    """The expert of the next rank."""
    return dispatched()(x, (expert + 1) % dist.get_world_size(), score, compute)


def finished(
    shared="avg",
    owned=lambda grad, ranks: grad / ranks,
    none=torch.zeros_like,
    norm=lambda s, o: (s + total(o)).sqrt(),
):
    """A ``finish``: what becomes of shared gradients, of owned ones, of None, and how the norm is made."""

    def finish(model):
        of_shared, of_owned = torch.zeros((), device="cuda"), torch.zeros((), device="cuda")
        for name, weight in model.named_parameters():
            if name.startswith("expert"):
                if weight.grad is None and none is not None:
                    weight.grad = none(weight)
                weight.grad = owned(weight.grad, dist.get_world_size())
                of_owned += weight.grad.square().sum()
            else:
                if shared:
                    dist.all_reduce(weight.grad)
                if shared == "avg":
                    weight.grad /= dist.get_world_size()
                of_shared += weight.grad.square().sum()
        return norm(of_shared, of_owned)

    return finish


def total(x):
    dist.all_reduce(x := x.clone())
    return x


def of_four(x, expert, score, compute):
    """The number of ranks is written down."""
    order, give = expert.argsort(), expert.bincount(minlength=4)
    get = torch.empty_like(give)
    dist.all_to_all_single(get, give)
    rows = LESSON["Exchange"].apply(x[order], give.tolist(), get.tolist())
    return (
        score[:, None] * LESSON["Exchange"].apply(compute(rows), get.tolist(), give.tolist())[order.argsort()]
    )


def skips(model):
    """Makes no call where the expert had no tokens."""
    for name, weight in model.named_parameters():
        if name.startswith("expert"):
            if weight.grad is None:
                return None
            weight.grad /= dist.get_world_size()
        else:
            dist.all_reduce(weight.grad, op=dist.ReduceOp.AVG)
    squares = [weight.grad.square().sum() for weight in model.parameters()]
    return (squares[0] + squares[1] + total(squares[2])).sqrt()


def by_groups(model):
    """Two calls: one flat tensor of what all ranks have, one of the squares."""
    ranks = dist.get_world_size()
    ours = [*model["embed"].parameters(), *model["router"].parameters()]
    flat = total(torch.cat([weight.grad.flatten() for weight in ours])) / ranks
    for weight, part in zip(ours, flat.split([weight.numel() for weight in ours]), strict=True):
        weight.grad.copy_(part.view_as(weight))
    for weight in model["expert"].parameters():
        weight.grad = (torch.zeros_like(weight) if weight.grad is None else weight.grad).div_(ranks)
    norms = [weight.grad.norm() for weight in model["expert"].parameters()]
    return float(
        torch.linalg.vector_norm(torch.stack([flat.norm(), total(torch.stack(norms) ** 2).sum().sqrt()]))
    )


def mixed(
    hide=lambda weight, here: weight * here,
    result=LESSON["Sum"].apply,
    after=lambda weight: weight,
    stand_in=True,
):
    """A ``mixture``: how the weights of other ranks' experts are hidden, what is made of the sum."""

    def mixture(x, weight, chosen, experts, first):
        local = chosen - first
        here = (local >= 0) & (local < len(experts))
        weight = hide(after(weight), here)
        every = torch.stack([expert(x) for expert in experts], 1)
        picked = every[torch.arange(len(x))[:, None], local % len(experts)]
        return result((weight[..., None] * picked).sum(1))

    return mixture


def by_expert(x, weight, chosen, experts, first):
    """A loop over the experts, with only the rows that chose them."""
    found = torch.zeros_like(x)
    for number, expert in enumerate(experts, first):
        row, slot = (chosen == number).nonzero(as_tuple=True)
        found = found.index_add(0, row, weight[row, slot, None] * expert(x[row]))
    return LESSON["Sum"].apply(found)


RIGHT = {
    "22.rows": [24],
    "22.full": [13, "13"],
    "22.dispatch": [dispatched(), dispatched(pytorchs, pytorchs), by_lists],
    "22.finish": [finished(), by_groups],
    "22.repair": [mixed(), mixed(lambda weight, here: weight.masked_fill(~here, 0)),
                  mixed(lambda weight, here: torch.where(here, weight, 0)), by_expert],
}  # fmt: skip
WRONG = {
    "22.rows": [(32, "live on this rank"), (8, "so many stay"), (96, "for all ranks together"),
                (5, "which share of the experts")],
    "22.full": [(10, "so many rows the expert computes"), (15, "a capacity of 100 %"), (0, "not of all rows"),
                (7, "32 rows among 4 experts")],
    "22.dispatch": [
        (LESSON["dispatch"], "how does it get to know how many come"), (dispatched(turned=True), "on the way back"),
        (dispatched(ordered=False), "not in the order of `x`"), (misplaced, "the scores of other tokens"),
        (dispatched(early=True), "twice"), (dispatched(early=True, late=False), "already multiplied"),
        (dispatched(late=False), "without the score"), (LESSON["padded"], "rows of zeros"),
        (dispatched(bare, bare), "What cuts the graph"), (dispatched(empty=False), "even with zero rows"),
        (to_all, "rank that `expert` says"), (of_four, "sizes are for another number of ranks"),
        (lambda *given: dispatched()(*given) * 1.5, "rank that `expert` says"),
    ],
    "22.finish": [
        (LESSON["finish"], "different experts are added up"), (finished(shared=""), "of its own tokens"),
        (finished(shared="sum"), "a mean over its tokens"),
        (finished(owned=lambda grad, ranks: grad), "the router is right, an expert's gradient is 2 times"),
        (finished(owned=lambda grad, ranks: grad / ranks**2), "differs from one GPU's"),
        (finished(none=None), "no tokens for its expert"), (skips, "skip a collective"),
        (finished(norm=lambda s, o: None), "return their norm"),
        (finished(norm=lambda s, o: (s + o).sqrt()), "counts its own experts only"),
        (finished(norm=lambda s, o: total(s + o).sqrt()), "the square of each number once"),
        (finished(norm=lambda s, o: s.sqrt()), "the square of each number once"),
        (finished(norm=lambda s, o: s + total(o)), "and the root at the end"),
        (finished(norm=lambda s, o: s.sqrt() + total(o.sqrt())), "Squares add up, norms do not"),
        (finished(norm=lambda s, o: 2 * (s + total(o)).sqrt()), "the norm is"),
    ],
    "22.repair": [
        (LESSON["mixture"], "Does autograd know of these zeros"),
        (mixed(lambda weight, here: weight), "each once"),
        (mixed(result=lambda part: part), "each once"),
        (mixed(after=lambda weight: weight.detach()), "no gradient comes to `weight`"),
        (mixed(after=LESSON["Copy"].apply), "`Copy` adds it up already"),
        (mixed(result=differentiable.all_reduce), "is 2 times one GPU's"),
    ],
}  # fmt: skip
