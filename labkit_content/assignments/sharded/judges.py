"""The rubric draws sizes, ranks and gradients for the student, and computes the right results in one process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from labkit_classroom.draw import Draw
from labkit_classroom.judging import Ask, part
from labkit_classroom.sandbox.inside.ranks import MODULES
from labkit_classroom.verdict import Hint

from . import checks, drivers

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
    yield from checks.wrong_owners(ask(drivers.assign_owners, cases=cases), cases)


@part("owners", 2, en="Equal sizes, few parameters, one rank", zh="大小相同、参数很少、只有一个 rank")
def edges(ask: Ask, draw: Draw) -> Iterator[Hint]:
    cases = [
        ([3, 1, 1, 4], 2),
        *_cases(draw, (2, 4), 3),
        ([draw.integer(1, 9)], 3),
        ([5, 5, 5, 5], 3),
        *_cases(draw, (1,), 9),
    ]
    yield from checks.wrong_owners(ask(drivers.assign_owners, cases=cases), cases)


def _weights(draw: Draw) -> list[Tensor]:
    return [
        draw.tensor(*shape) for shape in ((draw.integer(1, 3), 2), (3,), (draw.integer(1, 4),), (2, 2), (1,))
    ]


@part("state", 2, en="Each rank's optimizer has its own parameters", zh="每个 rank 的优化器只管自己的参数")
def own(ask: Ask, draw: Draw) -> Iterator[Hint]:
    ranks = draw.integer(2, 3)
    owner = [*draw.sample(range(ranks), 2), *(draw.integer(0, ranks - 1) for _ in range(3))]
    owner = [*owner[:-ranks], *range(ranks)][:5] if ranks > 2 else owner
    yield from checks.wrong_state(
        ask(drivers.make_optimizers, weights=_weights(draw), owner=owner, size=ranks), owner
    )


@part("state", 1, en="A rank that owns nothing returns None", zh="一个参数也没有的 rank 返回 None")
def nothing(ask: Ask, draw: Draw) -> Iterator[Hint]:
    owner = [draw.choice((0, 2)) for _ in range(4)] + [2]
    yield from checks.wrong_state(
        ask(drivers.make_optimizers, weights=_weights(draw), owner=owner, size=3), owner
    )


def _take_steps(ask: Ask, draw: Draw, unused: bool) -> tuple[tuple[Any, ...], int]:
    """Return the arguments of :func:`.checks.wrong_step`, and how many numbers travel if none travels twice."""
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
        yield from checks.wrong_step(*_take_steps(ask, draw, False)[0])


@part("step", 1, en="A parameter without a gradient is left alone", zh="没有梯度的参数不去动它")
def no_gradient(ask: Ask, draw: Draw) -> Iterator[Hint]:
    yield from checks.wrong_step(*_take_steps(ask, draw, True)[0])


@part("step", 2, en="No more travels than in an all-reduce", zh="传的不比一次全归约多")
def traffic(ask: Ask, draw: Draw) -> Iterator[Hint]:
    steps, numbers = _take_steps(ask, draw, False)
    yield from checks.wrong_step(*steps)
    yield from checks.wrong_bytes(steps[0], numbers)


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
    yield from checks.wrong_parts(told, weights, parts, False)


@part("parts", 2, en="Each unit reduces once", zh="每个单元只归约一次")
def reduces_once(ask: Ask, draw: Draw) -> Iterator[Hint]:
    told, weights, parts = _parts(ask, draw)
    yield from checks.wrong_parts(told, weights, parts, True)
