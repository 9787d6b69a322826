"""Hints for wrong answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from labkit_classroom.judging import NoAnswer, same
from labkit_classroom.messages import text_maker
from labkit_classroom.verdict import Hint

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
        for part in own:
            output = part
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
