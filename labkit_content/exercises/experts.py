"""Exercises of lesson 22: tokens sent to experts, gradients and their norm, a gradient of a hidden weight."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from labkit.base.language import series
from labkit_course.exercise import derive_facts, judge
from labkit_course.judging import Hints, Named
from labkit_course.kinds import A_NUMBER, a_function, read_returned

from .on_ranks import on_ranks

_ANEW = Random()


@derive_facts(
    "22.rows", ranks=(4, 2, 64), tokens=(32, 1, 65_536), k=(1, 1, 8),
    fresh=lambda random: {"ranks": (ranks := random.randint(2, 8)), "tokens": ranks * random.randint(2, 9), "k": 2},
)  # fmt: skip
def _rows(ranks: int, tokens: int, k: int) -> dict[str, int]:
    every, stay = tokens * k, tokens * k // ranks
    return {
        "all": every,
        "stay": stay,
        "leave": every - stay,
        "world": (every - stay) * ranks,
        "others": ranks - 1,
    }


def _close(one: Any, other: Any) -> bool:
    same = isinstance(one, Tensor) and one.shape == other.shape
    return same and torch.allclose(one, other, rtol=1e-4, atol=1e-6)


def _difference(one: Any, other: Any) -> float:
    same = isinstance(one, Tensor) and one.shape == other.shape
    return float((one - other).detach().abs().max()) if same else float("inf")


# Rows to their experts and back.


def _send_and_return(
    dispatch: Callable[..., Any], x: Tensor, expert: Tensor, score: Tensor, slope: Tensor, weight: Tensor
) -> list[Any]:
    computed, leaves = [0], [one.requires_grad_() for one in (x, score, weight)]

    def compute(rows: Tensor) -> Tensor:
        computed[0] += len(rows)
        return rows @ weight + 1

    output = read_returned(dispatch(x, expert, score, compute))
    ((output + 0 * x.sum()) * slope).sum().backward()
    return [output, *(one.grad for one in leaves), *computed]


@judge("22.dispatch", a_function("dispatch"))
def _dispatch(dispatch: Callable[..., Any]) -> Hints:
    for ranks, empty in ((2, False), (4, False), (3, True)):  # empty: no token chooses the last expert
        most, width, given = ranks - empty, _ANEW.randint(3, 5), []
        weights = torch.randn(ranks, width, width, requires_grad=True)
        for rank in range(ranks):
            # Ranks 0 and 1 send each other different numbers of rows; no expert but the empty one gets none.
            count = _ANEW.randint(5, 9 if ranks > 2 else 5)  # two ranks have equally many
            expert = torch.randint(most, (count,)) * (rank > 1)
            expert[:most] = torch.randperm(most)
            given.append(
                (torch.randn(count, width), expert, torch.rand(count) + 0.5, torch.randn(count, width))
            )
        own = [(dispatch, *one, weights[rank].detach()) for rank, one in enumerate(given)]
        ran, facts = on_ranks(_send_and_return, ranks, own), {"ranks": ranks}
        if ran.failure and ran.failure.hangs:
            yield Named("skipped" if empty else "counts", **facts)
        if ran.failure and "splits not equal to group size" in ran.failure.words:
            yield Named("splits", **facts)
        if ran.failure and "plit sizes" in ran.failure.words:
            yield Named("swapped", **facts)
        found = ran.require_success().results
        for rank, (x, expert, score, slope) in enumerate(given):
            x.requires_grad_()
            score.requires_grad_()
            part, by_score, mine = weights[expert], score[:, None], found[rank][0]
            plain, early = ((rows[:, None] @ part)[:, 0] + 1 for rows in (x, x * by_score))
            right = plain * by_score
            (right * slope).sum().backward()
            if _close(mine, right):
                continue
            for name, value in (("both", early * by_score), ("before", early), ("unscored", plain)):
                if _close(mine, value):
                    yield Named(name, **facts)
            name, order = "other", expert.argsort(stable=True)
            if any(_close(mine, plain * by_score[way]) for way in (order, order.argsort())):
                name = "scores"
            elif mine.shape == plain.shape and torch.cdist(mine / by_score, plain).amin(1).max() < 1e-4:
                name = "order"
            yield Named(name, rank=rank, by=_difference(mine, right), **facts)
        for rank, (_, *gradients, _) in enumerate(found):
            wanted = (given[rank][0].grad, given[rank][2].grad, weights.grad[rank])  # type: ignore[index]
            for name, got, gradient in zip(("x", "score", "compute"), gradients, wanted, strict=True):
                if gradient is not None and not _close(
                    torch.zeros_like(gradient) if got is None else got, gradient
                ):
                    lost = got is None or not got.any()
                    yield Named(
                        "cut" if lost else "gradient", name=name, by=_difference(got, gradient), **facts
                    )
        if sum(one[-1] for one in found) > sum(len(one[0]) for one in given):
            yield Named("padded", found=found[0][-1], wanted=int(sum((one[1] == 0).sum() for one in given)))


# Gradients of shared and of owned weights, and their norm.

_NAMES = ("embed", "router", "expert")


def _finish_step(finish: Callable[..., Any], gradients: Sequence[Tensor | None]) -> list[Any]:
    model = nn.ModuleDict({name: nn.Linear(3, 3, bias=False) for name in _NAMES}).cuda()
    for layer, gradient in zip(model.values(), gradients, strict=True):
        layer.weight.grad = gradient
    return [finish(model), *(layer.weight.grad for layer in model.values())]


@judge("22.finish", a_function("finish"))
def _finish(finish: Callable[..., Any]) -> Hints:
    for ranks, empty in ((2, False), (3, False), (4, True)):  # empty: the last expert has had no tokens
        drawn = torch.randn(ranks, len(_NAMES), 3, 3) * torch.tensor([1.0, 2, 3])[:, None, None]
        given = [(finish, [*one]) for one in drawn]
        if empty:
            drawn[-1, -1] = 0
            given[-1][1][-1] = None
        ran = on_ranks(_finish_step, ranks, given)
        if ran.failure and ran.failure.hangs:
            yield Named("hangs", ranks=ranks)
        if ran.failure and empty and isinstance(ran.failure.error, (AttributeError, TypeError)):
            yield Named("none", rank=ranks - 1)
        norms = []
        for rank, (norm, *found) in enumerate(ran.require_success().results):
            norms.append(norm)
            for at, (name, got) in enumerate(zip(_NAMES, found, strict=True)):
                facts, mean, own = (
                    {"ranks": ranks, "rank": rank, "name": name},
                    drawn[:, at].mean(0),
                    drawn[rank, at],
                )
                right = own / ranks if name == "expert" else mean
                if got is None:
                    yield Named("none", **facts)
                if _close(got, right):
                    continue
                if _close(got, own):
                    yield Named("times" if name == "expert" else "own", **facts)
                if any(_close(got, one) for one in (mean, mean * ranks, mean / ranks)):
                    yield Named("mixed" if name == "expert" else "summed", **facts)
                yield Named("gradient", by=_difference(got, right), **facts)
        yield from _check_norms(norms, drawn, ranks)


def _check_norms(found: list[Any], drawn: Tensor, ranks: int) -> Hints:
    if any(one is None for one in found):
        yield Named("no_norm")
    norms = [read_returned(one, A_NUMBER) for one in found]
    shared, owned = float(drawn[:, :2].mean(0).square().sum()), float((drawn[:, 2] / ranks).square().sum())
    right = (shared + owned) ** 0.5
    name = "norm_apart" if max(norms) - min(norms) > 1e-4 * right else "norm"
    for norm in norms:
        if abs(norm - right) > 1e-4 * right:
            yield Named(name, found=norm, wanted=right, norms=series([f"{one:.3f}" for one in norms]))


# The gradient of a weight that is 0.


class _Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        dist.all_reduce(gradient := gradient.clone())
        return gradient


def _alone(x: Tensor, weight: Tensor, chosen: Tensor, experts: Any, first: int) -> Tensor:
    every = torch.stack([expert(x) for expert in experts], 1)
    return (weight[..., None] * every[torch.arange(len(x))[:, None], chosen]).sum(1)


def _mix(mixture: Callable[..., Any], matrices: Tensor, first: int, *given: Tensor) -> list[Any]:
    """Return the output, and the gradients of x, the experts and the weights; ``mixture`` is `_alone` on one GPU."""
    x, weight = (one.clone().requires_grad_() for one in given[:2])
    experts = nn.ModuleList(nn.Linear(len(one), len(one), bias=False, device=x.device) for one in matrices)
    for layer, matrix in zip(experts, matrices, strict=True):
        layer.weight.data = matrix.clone()
    enter = (x, weight) if mixture is _alone else (_Copy.apply(x), _Copy.apply(weight))
    output = read_returned(mixture(*enter, given[2], experts, first))
    (output * given[3]).sum().backward()
    grads = [layer.weight.grad for layer in experts]
    return [
        output.detach(),
        x.grad,
        *(torch.zeros(0) if grad is None else grad for grad in grads),
        weight.grad,
    ]


@judge("22.repair", a_function("mixture"))
def _repair(mixture: Callable[..., Any]) -> Hints:
    for ranks, own in ((2, 3), (4, 2)):
        width, tokens = _ANEW.randint(3, 5), 4 * ranks * own
        weight, chosen = torch.randn(tokens, ranks * own).softmax(-1).topk(2)
        given = (torch.randn(tokens, width), weight, chosen, torch.randn(tokens, width))
        matrices = torch.randn(ranks * own, width, width)
        parts = [(mixture, part, rank * own, *given) for rank, part in enumerate(matrices.chunk(ranks))]
        ran, right = on_ranks(_mix, ranks, parts).require_success(), _mix(_alone, matrices, 0, *given)
        for rank, (output, *found) in enumerate(ran.results):
            wanted = [right[1], *right[2 + rank * own : 2 + (rank + 1) * own], right[-1]]
            if not _close(output, right[0]):
                yield Named("output", ranks=ranks, by=_difference(output, right[0]))
            if found[-1] is None or not found[-1].any():
                yield Named("cut", ranks=ranks)
            for name, got, one in zip(("x", *["experts"] * own, "weight"), found, wanted, strict=True):
                facts = {"ranks": ranks, "rank": rank, "name": name}
                if _close(got, one):
                    continue
                if _close(got, one * ranks):
                    yield Named("times", **facts)
                if name == "weight":
                    yield Named("stand_in", off=float((got - one).norm() / one.norm()), **facts)
                yield Named("other", by=_difference(got, one), **facts)
