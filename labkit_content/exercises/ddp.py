"""Exercises of lesson 12: DDP's buckets built by hand, and an accumulation that is sent once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from labkit.plans.buckets import buckets
from labkit_course.exercise import judge
from labkit_course.judging import Hints, Named, Unreadable
from labkit_course.kinds import a_function, read_returned

from .on_ranks import RanksRun, on_ranks

_ROWS = 4


def _two_functions(answer: object) -> tuple[Callable[..., Any], Callable[..., Any]]:
    if not isinstance(answer, (tuple, list)) or len(answer) != 2 or not all(map(callable, answer)):
        raise Unreadable
    if all(map(_is_stub, answer)):
        read_returned(...)
    return answer[0], answer[1]


def _is_stub(function: Any) -> bool:
    """Return whether the body of ``function`` is still the ``...`` of the lesson."""
    code = getattr(function, "__code__", None)
    body = code and (code.co_name != "<lambda>", code.co_names, code.co_consts)
    return bool(body == (True, (), (None,)))


def _model(wide: Sequence[int]) -> nn.Sequential:
    """Return layers of these widths, with the same weights in each call."""
    torch.manual_seed(len(wide))
    return nn.Sequential(*map(nn.Linear, wide, wide[1:]))


def _gradients(model: nn.Module, rows: Tensor) -> list[Tensor]:
    """Return the gradients of the mean loss over ``rows`` in one process."""
    model.zero_grad()
    model(rows).square().mean().backward()
    return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]


def _is_close(one: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
    return all(torch.allclose(a, b, rtol=1e-3, atol=1e-7) for a, b in zip(one, other, strict=True))


def _times(got: Sequence[Tensor], want: Sequence[Tensor]) -> float | None:
    """Return the factor of the first differing tensor of ``got``; None if it is no multiple."""
    for one, other in zip(got, want, strict=True):
        times = float(one.norm() / other.norm())
        if not torch.allclose(one, other, rtol=1e-3, atol=1e-7):
            return times if torch.allclose(one, times * other, rtol=1e-3, atol=1e-7) else None
    return None


def _fresh() -> tuple[int, list[int], Tensor]:
    """Return a number of ranks, widths of layers, and the rows of each rank."""
    chance = Random()
    ranks, wide = chance.randint(2, 4), [chance.randint(5, 20) for _ in range(chance.randint(5, 7))]
    return ranks, wide, torch.randn(ranks, _ROWS, wide[0])


@judge("12.own", _two_functions)
def _own(answer: tuple[Callable[..., Any], Callable[..., Any]]) -> Hints:
    ready, finish = answer
    ranks, wide, rows = _fresh()
    sizes = [4 * parameter.numel() for parameter in reversed(list(_model(wide).parameters()))]

    def step(rows: Tensor, most: int) -> tuple[list[Tensor], Tensor]:
        model: Any = _model(wide).cuda()
        bucket, sent, seen = list[Tensor](), list[Any](), list[Tensor]()

        # Before the last gradients are there, all ranks meet: what was called earlier overlaps with backward.
        def meet(_: object) -> None:
            seen.append(model[-1].bias.grad.clone())
            dist.barrier()

        model[0].bias.register_post_accumulate_grad_hook(meet)
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(
                lambda parameter: ready(parameter.grad, bucket, sent, most)
            )
        computing.add(dist.get_rank())
        model(rows).square().mean().backward()
        computing.discard(dist.get_rank())
        finish(bucket, sent)
        return [parameter.grad for parameter in model.parameters()], seen[0]

    mine = [_gradients(_model(wide), own) for own in rows]
    want = [sum(parts) / ranks for parts in zip(*mine, strict=True)]
    # With a limit just below the last bias, bytes and numbers make different buckets in every draw.
    for most in (max(sizes[:2]) // 4, sizes[0] - 4, sum(sizes[:2]), 10**6, 1):
        case = Named("case", ranks=ranks, tensors=len(sizes), most=most)
        computing, waits = set[int](), list[int]()
        with patch.object(dist, "all_reduce", partial(_all_reduce, dist.all_reduce, computing, waits)):
            ran = on_ranks(step, ranks, [(own, most) for own in rows])
        words = str(ran.failure.error) if ran.failure else ""
        if "must be an iterable, not" in words or "receive() missing" in words:
            yield Named("apart", words=words)
        if "non-empty list" in words:
            yield Named("empty", case=case)
        if "split_with_sizes" in words:
            parts = words.partition("split_sizes=")[2].count(",") + 1
            yield Named("grown" if parts == len(sizes) else "cleared")
        full, by_number = ([sum(one) for one in buckets(sizes, size)] for size in (most, 4 * most))
        early = _closed_early(sizes, most)
        yield from _hints_on_buckets(ran.require_success(), mine, want, full, by_number, case, early)
        if len(full) > 1 and waits:
            yield Named("waits", case=case)


def _all_reduce(
    all_reduce: Callable[..., Any], computing: set[int], waits: list[int], *given: Any, **more: Any
) -> Any:
    """All-reduce; note in ``waits`` each rank that waits for it while it is in ``computing``."""
    work, rank = all_reduce(*given, **more), dist.get_rank()
    if work is None:
        waits += [rank] * (rank in computing)
        return None

    class Noted:
        def __getattr__(self, name: str) -> Any:
            return getattr(work, name)

        def wait(self, *timeout: Any) -> Any:
            waits.extend([rank] * (rank in computing))
            return work.wait(*timeout)

    return Noted()


def _closed_early(sizes: Sequence[int], most: int) -> list[int]:
    """Return the bytes of buckets that are sent before the gradient that would make them exceed ``most``."""
    found = [0]
    for size in sizes:
        if found[-1] and found[-1] + size > most:
            found.append(0)
        found[-1] += size
    return found


def _hints_on_buckets(
    ran: RanksRun,
    mine: list[list[Tensor]],
    want: list[Any],
    full: list[int],
    by_number: list[int],
    case: Named,
    early: list[int],
) -> Hints:
    """Yield hints on a run.

    ``want`` has the mean gradients, ``mine`` each rank's own, ``full`` the bytes of the buckets, ``by_number`` those of
    buckets that hold as many numbers as they should hold bytes, ``early`` of buckets sent before they are full.
    """
    if other := [kind for kind in ran.call_kinds() if kind not in ("all_reduce", "barrier")]:
        yield Named("called", case=case, kind=f"`{other[0]}`")
    if len(full) > 1 and not ran.count("all_reduce"):
        yield Named("nothing", case=case)
    carried = [event.nbytes for event in ran.events if event.rank == 0 and event.name == "all_reduce"]
    for (gradients, _), own in zip(ran.results, mine, strict=True):
        if _is_close(gradients, want):
            continue
        if any(_is_close([got], [one]) for got, one in zip(gradients, own, strict=True)):
            yield Named("back" if sum(carried) >= sum(full) else "own", case=case)
        times = _times(gradients, want)
        yield Named("times", case=case, times=times) if times else Named("other", case=case)
    if carried == early != full and 1 < len(early) < len(want):
        yield Named("early", case=case)
    if sum(carried) > sum(full):
        yield Named("again", case=case)
    if len(carried) == len(want) > len(full):
        yield Named("each", case=case, got=len(carried))
    if carried == by_number != full and len(by_number) > 1:
        yield Named("numbers", case=case)
    if len(full) > 1 and next(event.name for event in ran.events if event.rank == 0) == "barrier":
        yield Named("late", case=case)
    if carried != full:
        yield Named("sizes", case=case, got=carried, want=full)


@judge("12.repair", a_function("step"))
def _repair(answer: Callable[..., Any]) -> Hints:
    for many in (4, 2, 3):
        ranks, wide, _ = _fresh()
        ranks = 3 if many == 4 else ranks  # the stored output of the lesson quotes the first case
        rows = torch.randn(ranks, many, _ROWS, wide[0])

        def step(parts: Tensor, wide: list[int] = wide) -> tuple[list[Any], int, int]:
            model, at_once, held = _model(wide).cuda(), [0], [0]
            # A forward adds a part whose activations are in memory until a backward.
            next(model.parameters()).register_post_accumulate_grad_hook(lambda _: held.append(0))
            model.register_forward_pre_hook(lambda *_: held.append(held[-1] + 1))
            model.register_forward_pre_hook(lambda _, given: at_once.append(given[0].numel()))
            parallel = DistributedDataParallel(model)
            answer(parallel, parts)
            return [parameter.grad for parameter in parallel.parameters()], max(at_once), max(held)

        ran = on_ranks(step, ranks, [(own,) for own in rows]).require_success()
        case = Named("case", ranks=ranks, parts=many)
        want = _gradients(_model(wide), rows.flatten(0, 2))
        yield from _hints_on_step(ran, rows, wide, want, case)


def _hints_on_step(ran: RanksRun, rows: Tensor, wide: list[int], want: list[Tensor], case: Named) -> Hints:
    got, many = ran.count("all_reduce"), rows.size(1)
    if any(gradient is None for gradients, *_ in ran.results for gradient in gradients) or not got:
        yield Named("none", case=case)
    if ran.results[0][1] > rows[0, 0].numel():
        yield Named("joined", case=case)
    if not all(_is_close(gradients, want) for gradients, *_ in ran.results):
        last = [gradient / many for gradient in _gradients(_model(wide), rows[:, -1].flatten(0, 1))]
        times = _times(ran.results[0][0], want)
        if any(_is_close([g * k for g in last], ran.results[0][0]) for k in (1, many)):
            yield Named("part", case=case)
        undivided = [one + g * (many - 1) for one, g in zip(want, last, strict=True)]
        if _is_close(ran.results[0][0], undivided):
            yield Named("undivided", case=case)
        if got < many and not _is_close(ran.results[0][0], ran.results[1][0]):
            yield Named("after", case=case)
        yield Named("scale", case=case, times=times) if times else Named("other", case=case)
    if (held := ran.results[0][2]) > 1:
        yield Named("at_once", case=case, held=held)
    if got == many:
        yield Named("all", case=case, got=got)
    if got != 1:
        yield Named("count", case=case, got=got)
