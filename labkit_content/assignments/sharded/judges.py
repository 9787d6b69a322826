"""The rubric draws sizes, ranks and gradients for the student, and computes the right results in one process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from labkit_classroom.draw import Draw
from labkit_classroom.judging import Ask, NoAnswer, part, same
from labkit_classroom.messages import text_maker
from labkit_classroom.sandbox.inside.ranks import MODULES
from labkit_classroom.verdict import Hint

from . import drivers

hint = text_maker(Hint, __file__)

# Bytes that a rank sends in a collective for each byte of its tensor, without the factor (n - 1)/n.
_TIMES = {"all_reduce": 2, "send": 1, "recv": 0}


def right_owners(sizes: Sequence[int], ranks: int) -> list[int]:
    """From the largest to the smallest, each to the rank with the fewest."""
    held, owner = [0] * ranks, [0] * len(sizes)
    for size, at in sorted((-size, at) for at, size in enumerate(sizes)):
        owner[at] = min(range(ranks), key=lambda rank: (held[rank], rank))
        held[owner[at]] -= size
    return owner


def _as_they_come(sizes: Sequence[int], ranks: int) -> list[int]:
    """Owners in the model's order."""
    held, owner = [0] * ranks, []
    for size in sizes:
        owner.append(held.index(min(held)))
        held[owner[-1]] += size
    return owner


def wrong_owners(found: Sequence[Any], cases: Sequence[tuple[Sequence[int], int]]) -> Iterator[Hint]:
    turns = all(
        got == [at % ranks for at in range(len(sizes))]
        for got, (sizes, ranks) in zip(found, cases, strict=True)
    )
    came = all(got == _as_they_come(*case) for got, case in zip(found, cases, strict=True))
    for got, (sizes, ranks) in zip(found, cases, strict=True):
        if not isinstance(got, (list, tuple)) or not all(hasattr(one, "__index__") for one in got):
            raise NoAnswer(hint("kind"))
        wanted, got = right_owners(sizes, ranks), list(map(int, got))
        if got == wanted:
            continue
        if len(got) != len(sizes):
            yield hint("length", wanted=len(sizes), count=len(got))
        if any(not 0 <= one < ranks for one in got):
            yield hint("no-such", ranks=ranks, rank=next(one for one in got if not 0 <= one < ranks))
        held = [
            sum(size for size, one in zip(sizes, got, strict=True) if one == rank) for rank in range(ranks)
        ]
        if turns:
            yield hint("in-turn", sizes=list(sizes), held=held)
        if came:
            yield hint("as-they-come", sizes=list(sizes), held=held)
        yield hint("owners", sizes=list(sizes), ranks=ranks, got=got, held=held, wanted=wanted)


def _report_end(told: Any) -> Iterator[Hint]:
    """Checks that the ranks came to an end."""
    if told["stuck"]:
        who = " ".join(str(told["stuck"][0]).split())[:160]
        yield hint("stuck", who=who)


def wrong_state(told: Any, owner: Sequence[int]) -> Iterator[Hint]:
    yield from _report_end(told)
    for rank, found in enumerate(told["results"]):
        wanted = [at for at, mine in enumerate(owner) if mine == rank]
        if found is None or not wanted:
            if found is not None:
                yield hint("not-none", rank=rank)
            if wanted:
                yield hint("none", rank=rank, count=len(wanted))
            continue
        if len(found["held"]) == len(owner) > len(wanted):
            yield hint("everything", rank=rank, count=len(owner))
        if sorted(found["held"]) != wanted:
            yield hint("other-parameters", rank=rank, held=sorted(found["held"]), wanted=wanted)
        if not found["ours"]:
            yield hint("not-made")


def weights_after(
    weights: Sequence[Tensor], gradients: Sequence[Sequence[Any]], rates: Sequence[float]
) -> list[Tensor]:
    """Return the weights after a step with momentum for each of ``gradients``; each weight has its learning rate."""
    model = [nn.Parameter(weight.clone()) for weight in weights]
    groups = [{"params": [weight], "lr": rate} for weight, rate in zip(model, rates, strict=True)]
    optimizer = torch.optim.SGD(groups, lr=1.0, momentum=0.5)
    for each in gradients:
        for parameter, gradient in zip(model, each, strict=True):
            parameter.grad = None if gradient is None else gradient.clone()
        optimizer.step()
    return [parameter.detach() for parameter in model]


def _join_ranks(gradients: Any, divided: int) -> list[list[Any]]:
    return [
        [None if own[0] is None else torch.stack(own).sum(0) / divided for own in zip(*each, strict=True)]
        for each in gradients
    ]


def wrong_step(
    told: Any, weights: Sequence[Tensor], gradients: Any, owner: Sequence[int], rates: Sequence[float]
) -> Iterator[Hint]:
    """Check every rank's weights after all steps."""
    yield from _report_end(told)
    ranks, own_rates = len(gradients[0]), [rates[rank] for rank in owner]
    right = weights_after(weights, _join_ranks(gradients, ranks), own_rates)
    total = weights_after(weights, _join_ranks(gradients, 1), own_rates)
    own = [weights_after(weights, [each[rank] for each in gradients], own_rates) for rank in range(ranks)]
    for rank, found in enumerate(told["results"]):
        for at, got in enumerate(found):
            if same(got, right[at], 1e-4):
                continue
            mine = owner[at] == rank
            if gradients[0][0][at] is None:
                yield hint("unused", at=at, rank=rank)
            if ranks > 1 and same(got, total[at], 1e-4):
                yield hint("sum", ranks=ranks)
            if same(got, weights[at]) and not mine:
                yield hint("not-sent", at=at, owner=owner[at], rank=rank)
            if same(got, own[owner[at]][at], 1e-4):
                yield hint("own-gradient", at=at)
            if same(got, weights[at]):
                yield hint("unchanged", at=at, rank=rank)
            yield hint("weights", steps=len(gradients), ranks=ranks, at=at, rank=rank)


def wrong_bytes(told: Any, numbers: int) -> Iterator[Hint]:
    """Checks that in all steps no more travels than ``numbers`` numbers there and back."""
    sent = sum(_TIMES.get(name, 1) * nbytes for name, nbytes in told["calls"]) / 4
    if sent > 2.01 * numbers:
        whole = any(name == "all_reduce" and nbytes for name, nbytes in told["calls"])
        yield hint("bytes", *["whole"] * whole, times=sent / numbers)


def wrong_parts(told: Any, weights: Sequence[Tensor], parts: Sequence[Tensor], once: bool) -> Iterator[Hint]:
    """Checks the gradients, that the model ran for each part; ``once``: that each unit reduced once."""
    yield from _report_end(told)
    count, ranks = len(parts[0]), len(parts)
    leaves = [weight.clone().requires_grad_() for weight in weights]
    for own in parts:
        for output in own:
            for leaf in leaves:
                output = output @ leaf.T
                output = output - output.mean(0)
            (output.square().mean() / count / ranks).backward()
    for gradients, runs in told["results"]:
        if any(gradient is None for gradient in gradients):
            yield hint("never")
        if runs != count:
            yield hint("runs", count=count, runs=runs)
        for gradient, leaf in zip(gradients, leaves, strict=True):
            assert leaf.grad is not None
            if same(gradient, leaf.grad, 1e-3):
                continue
            if same(gradient, leaf.grad * count, 1e-3):
                yield hint("sum", "parts", count=count)
            yield hint("gradient")
    reduced = sum(name.startswith("reduce_scatter") for name, _ in told["calls"])
    if once and reduced > len(weights):
        yield hint("each", units=len(weights), count=count, reduced=reduced)


# The parts of the rubric.

PRELOAD, APART = MODULES, ("state", "step", "parts")
WITHOUT = dict.fromkeys(
    ("owners", "state", "step", "parts"), ("labkit", "torch.distributed.optim.ZeroRedundancyOptimizer")
)


def numbers(draw: Draw | None) -> dict[str, int | str]:
    """A size in the example of question 1, and how many numbers the example of question 3 has."""
    return {
        "first": 4 if draw is None else draw.integer(2, 9),
        "numbers": 100 if draw is None else draw.integer(2, 9) * 50,
    }


def _cases(draw: Draw, ranks: tuple[int, ...], most: int) -> list[tuple[list[int], int]]:
    return [([draw.integer(1, most) for _ in range(draw.integer(5, 9))], count) for count in ranks]


@part("owners", 1, en="Large parameters", zh="大小悬殊的参数")
def large(ask: Ask, draw: Draw) -> Iterator[Hint]:
    cases = [([1, *sizes, 90], ranks) for sizes, ranks in _cases(draw, (2, 3), 40)]
    yield from wrong_owners(ask(drivers.assign_owners, cases=cases), cases)


@part("owners", 2, en="Equal sizes, few parameters, one rank", zh="大小相同、参数很少、只有一个 rank")
def edges(ask: Ask, draw: Draw) -> Iterator[Hint]:
    cases = [
        ([3, 1, 1, 4], 2),
        *_cases(draw, (2, 4), 3),
        ([draw.integer(1, 9)], 3),
        ([5, 5, 5, 5], 3),
        *_cases(draw, (1,), 9),
    ]
    yield from wrong_owners(ask(drivers.assign_owners, cases=cases), cases)


def _weights(draw: Draw) -> list[Tensor]:
    return [
        draw.tensor(*shape) for shape in ((draw.integer(1, 3), 2), (3,), (draw.integer(1, 4),), (2, 2), (1,))
    ]


@part("state", 2, en="Each rank's optimizer has its own parameters", zh="每个 rank 的优化器只管自己的参数")
def own(ask: Ask, draw: Draw) -> Iterator[Hint]:
    ranks = draw.integer(2, 3)
    owner = [*draw.sample(range(ranks), 2), *(draw.integer(0, ranks - 1) for _ in range(3))]
    owner = [*owner[:-ranks], *range(ranks)][:5] if ranks > 2 else owner
    yield from wrong_state(
        ask(drivers.make_optimizers, weights=_weights(draw), owner=owner, size=ranks), owner
    )


@part("state", 1, en="A rank that owns nothing returns None", zh="一个参数也没有的 rank 返回 None")
def nothing(ask: Ask, draw: Draw) -> Iterator[Hint]:
    owner = [draw.choice((0, 2)) for _ in range(4)] + [2]
    yield from wrong_state(ask(drivers.make_optimizers, weights=_weights(draw), owner=owner, size=3), owner)


def _take_steps(ask: Ask, draw: Draw, unused: bool) -> tuple[tuple[Any, ...], int]:
    """Return the arguments of :func:`wrong_step`, and how many numbers travel if none travels twice."""
    ranks, weights = draw.integer(2, 3), _weights(draw)
    left = draw.integer(0, 4) if unused else -1
    gradients = [
        [
            [
                None if at == left else draw.tensor(*weight.shape) + 5.0 * rank
                for at, weight in enumerate(weights)
            ]
            for rank in range(ranks)
        ]
        for _ in range(2)
    ]
    owner = [draw.integer(0, ranks - 1) for _ in weights]
    rates = [one / 8 for one in draw.sample(range(2, 10), ranks)]
    told = ask(drivers.take_steps, weights=weights, gradients=gradients, owner=owner, rates=rates)
    numbers = len(gradients) * sum(w.numel() for at, w in enumerate(weights) if at != left)
    return (told, weights, gradients, owner, rates), numbers


@part(
    "step", 3, en="All ranks have the weights of one optimizer", zh="所有 rank 的权重都等于一个优化器的结果"
)
def weights(ask: Ask, draw: Draw) -> Iterator[Hint]:
    for _ in range(2):
        yield from wrong_step(*_take_steps(ask, draw, False)[0])


@part("step", 1, en="A parameter without a gradient is left alone", zh="没有梯度的参数不去动它")
def no_gradient(ask: Ask, draw: Draw) -> Iterator[Hint]:
    yield from wrong_step(*_take_steps(ask, draw, True)[0])


@part("step", 2, en="No more travels than in an all-reduce", zh="传的不比一次全归约多")
def traffic(ask: Ask, draw: Draw) -> Iterator[Hint]:
    steps, numbers = _take_steps(ask, draw, False)
    yield from wrong_step(*steps)
    yield from wrong_bytes(steps[0], numbers)


def _parts(ask: Ask, draw: Draw) -> tuple[Any, list[Tensor], list[Tensor]]:
    ranks, count, units = draw.integer(2, 3), draw.integer(2, 4), draw.integer(2, 3)
    width = 6
    weights = [draw.tensor(width, width) / 4 for _ in range(units)]
    parts = [draw.tensor(count, draw.integer(2, 2), width) / 4 + rank for rank in range(ranks)]
    return ask(drivers.accumulate, weights=weights, parts=parts), weights, parts


@part(
    "parts", 1, en="The gradients of the mean over all parts and ranks", zh="所有份、所有 rank 的平均的梯度"
)
def mean(ask: Ask, draw: Draw) -> Iterator[Hint]:
    told, weights, parts = _parts(ask, draw)
    yield from wrong_parts(told, weights, parts, False)


@part("parts", 2, en="Each unit reduces once", zh="每个单元只归约一次")
def reduces_once(ask: Ask, draw: Draw) -> Iterator[Hint]:
    told, weights, parts = _parts(ask, draw)
    yield from wrong_parts(told, weights, parts, True)
