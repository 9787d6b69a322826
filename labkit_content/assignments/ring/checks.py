"""Hints for wrong answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from inspect import getsource
from typing import Any

import torch
from torch import Tensor

from labkit_classroom.judging import same
from labkit_classroom.messages import text_maker
from labkit_classroom.verdict import Hint

from . import right

hint = text_maker(Hint, __file__)

# Sources for later questions: the two halves, and then the whole.
HALVES = "\n\n".join(
    [getsource(right.pass_around), getsource(right.reduce_scatter), getsource(right.all_gather)]
)
WHOLE = f"{HALVES}\n\n{getsource(right.all_reduce)}"


def wrong_way(told: Any) -> Iterator[Hint]:
    """Checks that the ranks came to an end, by messages alone."""
    if told["stuck"]:
        who = " ".join(str(told["stuck"][0]).split())[:160]
        yield hint("stuck", who=who)
    if others := [kind for kind in told["called"] if kind not in ("send", "recv")]:
        yield hint("collective", name=others[0])


def wrong_first(told: Any, given: Sequence[Tensor]) -> Iterator[Hint]:
    """Checks that chunk r + 1 of rank r holds the sum."""
    yield from wrong_way(told)
    ranks, total = len(given), torch.stack(list(given)).sum(0)
    for rank, got in enumerate(told["results"]):
        chunk = (rank + 1) % ranks
        if same(got[chunk], total[chunk], 1e-4):
            continue
        if same(got, given[rank]):
            yield hint("unchanged", rank=rank)
        finished = [c for c in range(ranks) if same(got[c], total[c], 1e-4)]
        if finished:
            yield hint("another-chunk", ranks=ranks, rank=rank, finished=finished[0], chunk=chunk)
        if any(same(got[chunk], own[chunk], 1e-4) for own in given):
            yield hint("replaced", chunk=chunk, rank=rank)
        yield hint("sum", ranks=ranks, chunk=chunk, rank=rank)


def wrong_second(told: Any, given: Sequence[Tensor], total: Tensor) -> Iterator[Hint]:
    """Check that all chunks of all ranks equal ``total``."""
    yield from wrong_way(told)
    ranks = len(given)
    for rank, got in enumerate(told["results"]):
        if same(got, total, 1e-4):
            continue
        right = [c for c in range(ranks) if same(got[c], total[c], 1e-4)]
        added = [c for c in range(ranks) if same(got[c], total[c] + given[rank][c], 1e-4)]
        if added:
            yield hint("added", chunk=added[0], rank=rank)
        if right == [(rank + 1) % ranks]:
            yield hint("unchanged", "second", rank=rank)
        yield hint("chunks", ranks=ranks, right=right, rank=rank)


def wrong_sum(told: Any, given: Sequence[Tensor]) -> Iterator[Hint]:
    """Checks that every rank's tensor holds the sum."""
    yield from wrong_way(told)
    ranks, total = len(given), torch.stack(list(given)).sum(0)
    for rank, got in enumerate(told["results"]):
        if same(got, total, 1e-4):
            continue
        if ranks > 1 and same(got, given[rank]):
            yield hint("unchanged", "sum", rank=rank)
        flat, right = got.flatten(), total.flatten()
        wrong = [at for at in range(len(right)) if not same(flat[at], right[at], 1e-3)]
        if 0 < len(wrong) <= len(right) // 2 and wrong[-1] == len(right) - 1:
            yield hint("rest", wanted=len(right), ranks=ranks, count=len(wrong))
        yield hint("sum", "sum", wanted=len(right), ranks=ranks, rank=rank)


def wrong_bytes(told: Any, most: int) -> Iterator[Hint]:
    """Checks that no rank sends more than ``most`` bytes, nor to another than the next one."""
    ranks = len(told["results"])
    if told["sent"] and max(told["sent"]) > most:
        worst = max(told["sent"])
        yield hint("bytes", ranks=ranks, worst=worst, most=most)
    if any(target != (source + 1) % ranks for source, target in told["to"]):
        yield hint("neighbour")


def wrong_average(told: Any, gradients: Sequence[Sequence[Any]]) -> Iterator[Hint]:
    """Check that every gradient is the average, and missing ones are still missing."""
    yield from wrong_way(told)
    ranks = len(gradients)
    for rank, found in enumerate(told["results"]):
        for at, got in enumerate(found):
            own = [each[at] for each in gradients]
            if own[0] is None:
                if got is not None:
                    yield hint("invented", at=at)
                continue
            total = torch.stack(own).sum(0)
            if got is not None and same(got, total / ranks, 1e-4):
                continue
            if got is not None and same(got, total, 1e-4):
                yield hint("not-divided", ranks=ranks)
            if got is not None and same(got, own[rank]):
                yield hint("own", at=at, rank=rank)
            yield hint("average", at=at, rank=rank)


def wrong_rings(told: Any) -> Iterator[Hint]:
    """Checks that all gradients go around together."""
    ranks = len(told["results"])
    sent = max(told["messages"], default=0)
    if sent > 2 * (ranks - 1):
        yield hint("rings", sent=sent, ring=2 * (ranks - 1))
