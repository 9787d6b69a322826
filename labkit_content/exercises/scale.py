"""Exercises of lesson 13: seeds, and denominators of losses on ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from labkit.base.texts import Text
from labkit_course.exercise import judge
from labkit_course.judging import Hints, Named
from labkit_course.kinds import a_function, read_returned, wrong_return
from labkit_ranks.calls.faults.report import format_ranks

from .on_ranks import on_ranks

_SAMPLES, _WIDE, _CLASSES = 5, 6, 3
_THREE = Text(en="three tensors", zh="三个张量")


def _is_close(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.allclose(one, other, rtol=1e-3, atol=1e-6)


@judge("13.seeds", a_function("prepare"))
def _seeds(answer: Callable[..., Any]) -> Hints:
    chance = Random()
    ranks, seed = 4, chance.randint(1, 1000)
    made = []
    for one in (seed, seed, seed + 1000):
        results = on_ranks(answer, ranks, [(one,)] * ranks).require_success().results
        for result in results:
            if (
                not isinstance(result, (tuple, list))
                or len(result) != 3
                or not all(map(torch.is_tensor, result))
            ):
                raise wrong_return(result, _THREE)
        made.append([[part.float() for part in result] for result in results])
    first, again, other = made
    for at, name in enumerate(("weights", "order")):
        if not all(_is_close(result[at], first[0][at]) for result in first):
            yield Named(name, ranks=ranks)
    for rank in range(ranks):
        alike = [k for k in range(ranks) if _is_close(first[k][2], first[rank][2])]
        if len(alike) > 1:
            yield Named("noise", ranks=ranks, who=format_ranks(alike))
        scaled = [k for k in range(ranks) if _is_proportional(first[k][2], first[rank][2])]
        sorts = [result[2].flatten().sort()[0] for result in first]
        scaled = scaled if len(scaled) > 1 else [k for k in range(ranks) if _is_close(sorts[k], sorts[rank])]
        if len(scaled) > 1:
            yield Named("scaled", ranks=ranks, who=format_ranks(scaled))
    if not all(
        _is_close(a, b) for one, two in zip(first, again, strict=True) for a, b in zip(one, two, strict=True)
    ):
        yield Named("again")
    if any(_is_close(a, b) for a, b in zip(first[0], other[0], strict=True)):
        yield Named("seedless")


def _is_proportional(one: Tensor, other: Tensor) -> bool:
    """Return whether the numbers differ only by a factor and a constant."""
    pair = (
        torch.stack([one.flatten().double(), other.flatten().double()]) if one.shape == other.shape else None
    )
    return pair is not None and bool(pair.corrcoef()[0, 1].abs() > 1 - 1e-9)


@judge("13.mean", a_function("loss_of"))
def _mean(answer: Callable[..., Any]) -> Hints:
    chance = Random()

    def gradient(values: Tensor) -> Any:
        weight = torch.ones(1, device="cuda", requires_grad=True)
        loss = answer(weight * values)
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            return loss if isinstance(loss, Tensor) else (loss,)
        if not loss.requires_grad:
            return None
        loss.backward()
        dist.all_reduce(weight.grad, op=dist.ReduceOp.AVG)
        return weight.grad

    for _ in range(3):
        tokens = [2, 2]
        # Not as many as there the sum over a rank's tokens, too, is the mean times the ranks.
        while sum(tokens) == len(tokens) ** 2:
            tokens = [2, *(chance.randint(3, 9) for _ in range(chance.randint(2, 4)))]
        given = [torch.rand(many) * chance.randint(1, 9) + 1 for many in tokens]
        ranks = len(tokens)
        ran = on_ranks(gradient, ranks, [(values,) for values in given])
        if ran.failure and "device type cpu" in ran.failure.words:
            yield Named("cpu", words=ran.failure.words)
        results = ran.require_success().results
        got, case = results[0], Named("case", ranks=ranks, tokens=tokens)
        if isinstance(got, tuple) or (isinstance(got, Tensor) and got.numel() != 1):
            told = read_returned(got[0] if isinstance(got, tuple) else got)
            raise wrong_return(told, Text(en="one number", zh="一个数"))
        if any(result is None for result in results):
            yield Named("cut", case=case)
        yield from _hints_on_mean(float(got), given, case)


def _hints_on_mean(got: float, given: Sequence[Tensor], case: Named) -> Hints:
    ranks, want = len(given), float(torch.cat(list(given)).mean())
    own = sum(float(values.mean()) for values in given) / ranks

    def is_about(value: float) -> bool:
        return abs(got - value) < 1e-5 * abs(value)

    if is_about(want):
        return
    sums = float(torch.cat(list(given)).sum())
    hints = [("of_means", own), ("of_means", own / ranks), ("small", want / ranks), ("sum", sums / ranks)]
    for name, value in [*hints, ("sum", sums)]:
        if is_about(value):
            yield Named(name, case=case, ranks=ranks)
    for base in (want, own):
        if is_about(base * ranks):
            yield Named("large" if base == want else "of_means", case=case, times=ranks)
    count = sum(map(len, given))
    for times in (*(fixed / ranks for fixed in (2, 3, 4, 8)), count / 10):
        if is_about(want * times):
            yield Named("fixed", case=case, times=times)
    yield Named("other", case=case)


@judge("13.repair", a_function("step"))
def _repair(answer: Callable[..., Any]) -> Hints:
    chance = Random()
    for many in (2, 3, 4):
        # The first case is the same each time: the stored output of the lesson quotes it.
        ranks = 5 if many == 2 else chance.choice([k for k in (2, 3) if k != many])  # no number for all
        rows = torch.randn(ranks, many, _SAMPLES, _WIDE)
        factors = 1.0, float(ranks), float(many), float(ranks * many), 1 / ranks, 1 / many
        padding = 1.0
        while padding in factors:  # otherwise counting all labels would look like a missing factor
            labels = torch.randint(_CLASSES, (ranks, many, _SAMPLES))
            for part in labels.flatten(0, 1):  # 1 to all of a part's labels count
                part[chance.randint(1, _SAMPLES) :] = -100
            labels[0, 0, 1:], labels[-1, -1] = -100, 0  # and never as many in all
            padding = labels.numel() / int((labels != -100).sum())

        def step(rows: Tensor, labels: Tensor) -> Any:
            parallel = DistributedDataParallel(_model().cuda())
            answer(parallel, list(zip(rows, labels, strict=True)))
            return parallel.module.weight.grad

        given = [(rows[rank], labels[rank]) for rank in range(ranks)]
        results = on_ranks(step, ranks, given).require_success().results
        case = Named("case", ranks=ranks, parts=many)
        if results[0] is None or not all(_is_close(result, results[0]) for result in results):
            yield Named("none", case=case)
        yield from _hints_on_gradient(results[0], rows, labels, factors, case)


def _model() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(_WIDE, _CLASSES)


def _hints_on_gradient(
    got: Tensor, rows: Tensor, labels: Tensor, factors: Sequence[float], case: Named
) -> Hints:
    model, (ranks, many) = _model(), labels.shape[:2]

    def gradient(loss: Tensor) -> Tensor:
        return torch.autograd.grad(loss, model.weight)[0]

    sums = [
        [gradient(cross_entropy(model(rows[r, p]), labels[r, p], reduction="sum")) for p in range(many)]
        for r in range(ranks)
    ]
    counts = (labels != -100).sum(2)
    total = torch.stack([part for own in sums for part in own]).sum(0)
    want = total / counts.sum()
    each = [sums[r][p] / counts[r, p] for r in range(ranks) for p in range(many)]
    of_means = torch.stack(each).mean(0)
    mistakes: dict[str, Any] = {
        "of_means": of_means,
        "sum": total,
        "divided_twice": of_means * ranks * many / counts.sum(),
        "own_count": sum(sum(own) / counts[r].sum() for r, own in enumerate(sums)) / ranks,
        "padding": total / labels.numel(),
        "part_count": sum(sum(sums[r][p] for r in range(ranks)) / counts[:, p].sum() for p in range(many)),
    }
    if _is_close(got, want):
        return
    for name, made in {"factor": want, **mistakes}.items():
        times = next((times for times in factors if _is_close(got, times * made)), None)
        if times is not None:
            known = f"{name}_times" if times > 1 and name in ("of_means", "padding") else name
            if name == "factor" and times < 1:
                known = "small" if times == 1 / ranks else "divided"
            yield Named(known, case=case, times=times, ranks=ranks, parts=many)
    if any(_is_close(got, want * fixed / ranks) for fixed in (4, 5, 8)):
        yield Named("fixed", case=case)
    yield Named("other", case=case)
