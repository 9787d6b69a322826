"""The exercises of lesson 14 that code judges: bytes by stage, a repair of FSDP2, a sharded optimizer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.optim import ZeroRedundancyOptimizer

from labkit.base.texts import Text
from labkit_course.exercise import judge
from labkit_course.judging import Hints, Named, Unreadable
from labkit_course.kinds import A_NUMBER, a_function, read_returned
from labkit_course.kinds import number as a_number

from .on_ranks import RanksRun, on_ranks, watch_new

_ANEW = Random()
# The stages from which on weights, gradients and optimizer are sharded, and the bytes of each for a parameter.
_FROM, _BYTES = (3, 2, 1), (2, 2, 12)
# The bytes that a rank sends per byte of the whole tensor, in units of (n - 1)/n.
_TIMES = {"all_reduce": 2, "all_gather": 1, "all_gather_single": 1, "reduce_scatter": 1, "reduce_scatter_single": 1,
          "broadcast": 1, "reduce": 1}  # fmt: skip


def _bytes(stage: int, ranks: int, sizes: Sequence[int] = _BYTES) -> float:
    return sum(size / (ranks if stage >= first else 1) for size, first in zip(sizes, _FROM, strict=True))


@judge("14.bytes", a_function("bytes_per_parameter"))
def _per_parameter(function: Callable[..., Any]) -> Hints:
    for stage in range(4):
        for ranks in (5, 2, 8, 64, 1):
            found = read_returned(function(stage, ranks), A_NUMBER)
            right = _bytes(stage, ranks)
            if _is_close(found, right):
                continue
            others = [other for other in range(4) if _is_close(found, _bytes(other, ranks))]
            kinds = [(size, stage >= first) for size, first in zip(_BYTES, _FROM, strict=True)]
            of_the_paper = any(
                abs(found - one) < 0.06 for one in (120, 31.4, 16.6)
            )  # GB, of 7.5e9 parameters
            mistakes = [
                ("gone", sum(size for size, cut in kinds if not cut)),
                ("fixed", _bytes(stage, 64) if stage else None),
                ("gigabytes", found if of_the_paper else 7.5 * right),
                ("together", ranks * right),
                ("only", 14 + 2 / ranks if stage > 1 else None),
                ("shifted", found if others else None),
                ("order", (2 / ranks + 14, 4 / ranks + 12, 16 / ranks)[stage - 1] if stage else None),
                ("float32", _bytes(stage, ranks, (4, 4, 8))),
                ("moments", _bytes(stage, ranks, (2, 2, 8))),
                ("floor", sum(size // ranks if cut else size for size, cut in kinds)),
                ("other", found),
            ]
            name = next(name for name, made in mistakes if made is not None and _is_close(found, made))
            facts = {"stage": stage, "ranks": ranks, "found": found, "right": right}
            yield Named(name, **facts, other=others[0] if others else stage)


def _is_close(one: float, other: float) -> bool:
    return abs(one - other) <= 1e-6 * max(abs(other), 1.0)


@judge("14.units", a_number)
def _units(answer: float) -> Hints:
    if answer == 4:
        yield Named("nothing")
    if not answer > 4:  # not a number is none, either
        yield Named("less")
    if answer < 5:
        yield Named("little")
    if answer > 9:
        yield Named("whole")


def _layers(seed: int, width: int, count: int = 4) -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(
            *(nn.Sequential(nn.Linear(width, width, bias=False), nn.ReLU()) for _ in range(count))
        )


def _full(tensor: Any) -> Tensor:
    """Return the whole tensor, gathered if each rank has a shard."""
    whole: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return whole.detach().clone()


@judge("14.prepare", a_function("prepare"))
def _prepare(prepare: Callable[..., Any]) -> Hints:
    seed = _ANEW.randrange(1000)
    rows = torch.randn(4, 8, 512)

    def train(rows: Tensor) -> list[Tensor]:
        model = _layers(seed, 512).cuda()
        made = prepare(model)
        if not isinstance(made, (tuple, list)) or len(made) != 2 or not hasattr(made[1], "step"):
            raise _NoPair
        model, optimizer = made
        for _ in range(3):
            optimizer.zero_grad()
            (model(rows) - 1).square().mean().backward()
            optimizer.step()
        return [_full(parameter) for parameter in model.parameters()]

    alone = _layers(seed, 512)
    before = [parameter.detach().clone() for parameter in alone.parameters()]
    optimizer = torch.optim.Adam(alone.parameters())
    for _ in range(3):
        optimizer.zero_grad()
        (alone(rows.flatten(0, 1)) - 1).square().mean().backward()
        optimizer.step()
    # Check the weights first, with enough memory; then check that small GPUs suffice.
    for memory in (None, "10 MiB"):
        ran = on_ranks(train, 4, [(own,) for own in rows], memory=memory)
        failure = ran.failure
        if failure and isinstance(failure.error, _NoPair):
            yield Named("pair")
        if failure and isinstance(failure.error, torch.OutOfMemoryError):
            sizes = [4 * weight.numel() for weight in before]
            everything = sum(sizes)
            # Leave out DDP's own all_gather, of the shapes it compares.
            gathered = [
                e.nbytes for e in ran.events if e.name.startswith("all_gather") and e.nbytes >= min(sizes)
            ]
            most = max(gathered, default=0)
            name = "one_unit" if most >= everything else "large_unit" if most > max(sizes) else "no_room"
            yield Named(name if gathered else "not_sharded", rank=failure.rank, layers=most // max(sizes))
        if failure and "Invariant encountered" in failure.words:
            yield Named("outer_first")
        everybody = ran.require_success().results
        weights = everybody[0]
        if [weight.shape for weight in weights] != [weight.shape for weight in before]:
            yield Named("shapes")
        if _largest_difference(weights, before) < 1e-6:
            yield Named("still")
        others = [_largest_difference(weights, found) for found in everybody]
        if not ran.events and max(others) > 1e-6:
            yield Named("alone", rank=others.index(max(others)), by=max(others))
        # Adam turns a gradient that is nearly nought into a whole step, whatever its sign: a few weights may differ.
        pairs = zip(weights, alone.parameters(), strict=True)
        by = float(torch.cat([(one - other).detach().abs().flatten() for one, other in pairs]).mean())
        if by > 1e-5:
            yield Named("other_weights", by=by)


class _NoPair(Exception):
    """The answer is no (model, optimizer) pair."""


def _largest_difference(ones: list[Tensor], others: list[Any]) -> float:
    """Return the largest difference; infinity if the shapes differ."""
    if [one.shape for one in ones] != [other.shape for other in others]:
        return float("inf")
    return max(float((one - other).detach().abs().max()) for one, other in zip(ones, others, strict=True))


def _a_class(answer: object) -> Any:
    if isinstance(answer, type) and hasattr(answer, "step"):
        return answer
    raise Unreadable(
        Text(
            en="put the class itself here, `Sharded`, with its method `step`",
            zh="这里放类本身，写 `Sharded`，它要有方法 `step`",
        )
    )


def _count_kept(thing: object, weights: Tensor, optimizers: list[Any]) -> int:
    """Count the numbers kept in ``thing`` and in ``optimizers``, without ``weights`` and gradients."""
    seen = {weights.untyped_storage().data_ptr()}
    total = 0
    todo: list[Any] = [vars(thing), *optimizers]
    known: set[int] = set()
    while todo:
        value = todo.pop()
        if id(value) in known:
            continue
        known.add(id(value))
        if isinstance(value, torch.optim.Optimizer):
            todo += [value.state, value.param_groups]
        elif isinstance(value, nn.Module):
            todo += [*value.parameters(), *value.buffers()]
        elif isinstance(value, Tensor):
            if value.dim() and value.untyped_storage().data_ptr() not in seen:
                seen.add(value.untyped_storage().data_ptr())
                total += value.untyped_storage().nbytes() // value.element_size()
        elif isinstance(value, dict):
            todo += [*value.keys(), *value.values()]
        elif isinstance(value, (list, tuple, set)):
            todo += list(value)
    return total


_STEPS = 3


def _train(
    sharded: Any, optimizers: list[tuple[int, Any]], weights: Tensor, *gradients: Tensor
) -> tuple[Tensor, int, float]:
    """Return the weights after all steps, how many numbers this rank keeps, and the square of its first moments."""
    optimizer = sharded(weights)
    for gradient in gradients:
        optimizer.step(gradient.clone())
    adam = dict(optimizers).get(dist.get_rank())  # the rank's last optimizer, wherever a class keeps it
    return weights, _count_kept(optimizer, weights, [adam]), _square_of_moments(adam) if adam else 0.0


def _square_of_moments(adam: torch.optim.Adam) -> float:
    return sum(float(state["exp_avg"].square().sum()) for state in adam.state.values())


@judge("14.optimizer", _a_class)
def _optimizer(sharded: Any) -> Hints:
    for ranks in (4, 3):
        parameters = ranks * _ANEW.randint(3, 8)
        start, gradients = torch.randn(parameters), torch.randn(_STEPS, ranks, parameters)
        gradients[1:] *= (
            10  # Adam's first step has no scale, later ones tell a sum of gradients from their mean
        )

        with watch_new(ZeroRedundancyOptimizer) as made, watch_new(torch.optim.Adam) as optimizers:
            train = partial(_train, sharded, optimizers)
            ran = on_ranks(train, ranks, [(start, *gradients[:, rank]) for rank in range(ranks)])
        if made:
            yield Named("ready_made")
        found = [weights for weights, _, _ in ran.require_success().results]
        yield from _wrong_weights(found, start, gradients)
        yield from _too_much(ran, parameters, ranks)
        # Adam's steps are the same for a sum and a mean; its moments are not.
        _, right = _adam(start, gradients.mean(1))
        times = (sum(square for _, _, square in ran.results) / right) ** 0.5
        if abs(times - ranks) < 0.01:
            yield Named("sum", ranks=ranks)


def _adam(start: Tensor, gradients: Tensor) -> tuple[Tensor, float]:
    """Return the weights after a step with each gradient, and the square of the first moments."""
    weights = start.clone()
    optimizer = torch.optim.Adam([weights])
    for gradient in gradients:
        weights.grad = gradient.clone()
        optimizer.step()
    return weights, _square_of_moments(optimizer)


def _wrong_weights(found: list[Tensor], start: Tensor, gradients: Tensor) -> Hints:
    """Yield hints on the ranks' weights after all steps."""
    ranks, facts = len(found), {"ranks": len(found), "steps": _STEPS}
    right, _ = _adam(start, gradients.mean(1))
    if all(_close(weights, right) for weights in found):
        return
    if all(_close(weights, start) for weights in found):
        yield Named("still")
    own = torch.cat([_adam(start, gradients[:, r])[0].chunk(ranks)[r] for r in range(ranks)])
    if all(_close(weights, own) for weights in found):
        yield Named("own_gradient")
    other = next((rank for rank in range(ranks) if not _close(found[rank], found[0])), None)
    if other is not None:
        yield Named("apart", one=0, other=other, **facts)
    yield Named("other", by=_largest_difference(found[:1], [right]), **facts)


def _too_much(ran: RanksRun, parameters: int, ranks: int) -> Hints:
    """Yield hints on the memory and messages of a rank."""
    held = max(kept for _, kept, _ in ran.results)
    room = 3 * parameters // ranks
    facts = {"ranks": ranks, "held": held / parameters, "room": 3 / ranks}
    if held >= 2 * parameters:
        yield Named("whole", **facts)
    if held > room + parameters // ranks:  # the part, Adam's two numbers, and room for the part's gradient
        yield Named("keeps", **facts)
    nbytes = [
        sum(_TIMES.get(e.name, 1) * e.nbytes for e in ran.events if e.rank == rank) for rank in range(ranks)
    ]
    sent = max(nbytes) / (4 * parameters * _STEPS) * (ranks - 1) / ranks
    allowed = 2 * (ranks - 1) / ranks
    if sent > 1.2 * allowed:
        yield Named("thrown_away", sent=sent, allowed=allowed)


def _close(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.allclose(one, other, rtol=1e-4, atol=1e-6)
