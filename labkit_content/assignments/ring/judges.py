"""The rubric draws ranks and tensors for the student, and adds them up in one process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from labkit_classroom.assignment import with_solution
from labkit_classroom.cells import parse
from labkit_classroom.draw import Draw
from labkit_classroom.judging import Ask, part, same
from labkit_classroom.messages import text_maker
from labkit_classroom.sandbox.inside.ranks import FOR_MESSAGES
from labkit_classroom.verdict import Hint

from . import drivers

hint = text_maker(Hint, __file__)

# The solutions of the questions by their ids; later questions get the source of earlier ones.
_SOLUTIONS = {
    cell.id: with_solution(cell.text.en)
    for cell in parse(Path(__file__).with_name("assignment.txt").read_text("utf-8"))
    if cell.role == "answer"
}
HALVES = "\n\n".join(_SOLUTIONS[question] for question in ("first", "second"))
WHOLE = f"{HALVES}\n\n{_SOLUTIONS['whole']}"


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


# The parts of the rubric.

PRELOAD, APART = FOR_MESSAGES, ("first", "second", "whole", "average")
_COLLECTIVES = (
    "all_reduce", "all_reduce_coalesced", "reduce", "reduce_scatter", "reduce_scatter_tensor", "all_gather",
    "all_gather_into_tensor", "all_to_all", "all_to_all_single", "broadcast", "gather", "scatter",
)  # fmt: skip
WITHOUT = dict.fromkeys(APART, ("labkit", *(f"torch.distributed.{name}" for name in _COLLECTIVES)))
# Numbers of a chunk with more bytes than NCCL's connections keep before anybody receives.
_LARGE = 1_100_000


def numbers(draw: Draw | None) -> dict[str, int | str]:
    """Ranks and numbers of the example in question 3, where some are left over."""
    ranks, length = (
        (4, 10) if draw is None else draw.choice([(r, n) for r in range(3, 9) for n in range(9, 40) if n % r])
    )
    return {"ranks": ranks, "numbers": length, "most": 2 * (ranks - 1) * -(-length // ranks)}


def _tensors(draw: Draw, ranks: int, *shape: int) -> list[Tensor]:
    return [draw.tensor(*shape) + 10.0 * rank for rank in range(ranks)]


def _draw_ranks(draw: Draw) -> list[int]:
    """Two ranks, and more: with two some mistakes cannot be seen, and others only."""
    return [draw.integer(3, 4), 2]


def _first(ask: Ask, draw: Draw) -> Iterator[tuple[Any, list[Tensor]]]:
    for ranks in _draw_ranks(draw):
        given = _tensors(draw, ranks, ranks, draw.integer(1, 4))
        yield ask(drivers.change_tensors, name="reduce_scatter", given=given), given


@part(
    "first",
    2,
    en="Chunk r + 1 of rank r is the sum over all ranks",
    zh="rank r 的分块 r + 1 是所有 rank 的总和",
)
def sums(ask: Ask, draw: Draw) -> Iterator[Hint]:
    for told, given in _first(ask, draw):
        yield from wrong_first(told, given)


@part(
    "first",
    1,
    en="Each rank sends n − 1 chunks to the next one",
    zh="每个 rank 发出 n − 1 个分块，发给下一个 rank",
)
def sends(ask: Ask, draw: Draw) -> Iterator[Hint]:
    for told, given in _first(ask, draw):
        yield from wrong_first(told, given)
        yield from wrong_bytes(told, 4 * given[0][1:].numel())


@part("first", 1, en="Large chunks do not make it hang", zh="分块很大时也不会卡住")
def large(ask: Ask, draw: Draw) -> Iterator[Hint]:
    values = draw.sample(range(1, 99), draw.integer(2, 3))
    # Both the smallest and the largest number of a chunk must be the sum.
    given = [torch.full((len(values), 2), float(value)) for value in values]
    told = ask(drivers.change_filled, name="reduce_scatter", values=values, length=_LARGE)
    yield from wrong_first(told, given)


def _second(ask: Ask, draw: Draw) -> Iterator[tuple[Any, list[Tensor], Tensor]]:
    for ranks in _draw_ranks(draw):
        given = _tensors(draw, ranks, ranks, draw.integer(1, 4))
        total = torch.stack([given[chunk - 1][chunk] for chunk in range(ranks)])
        yield ask(drivers.change_tensors, name="all_gather", given=given), given, total


@part("second", 2, en="All chunks of all ranks are finished", zh="所有 rank 的所有分块都是加完的")
def chunks(ask: Ask, draw: Draw) -> Iterator[Hint]:
    for told, given, total in _second(ask, draw):
        yield from wrong_second(told, given, total)


@part(
    "second",
    1,
    en="Each rank sends n − 1 chunks to the next one",
    zh="每个 rank 发出 n − 1 个分块，发给下一个 rank",
)
def sends_again(ask: Ask, draw: Draw) -> Iterator[Hint]:
    for told, given, total in _second(ask, draw):
        yield from wrong_second(told, given, total)
        yield from wrong_bytes(told, 4 * given[0][1:].numel())


def _run_whole(ask: Ask, draw: Draw, even: bool) -> Iterator[tuple[Any, list[list[Tensor]]]]:
    """Yield what the ranks returned for several tensors each, and the tensors."""
    for ranks in [draw.integer(2, 3)] if even else _draw_ranks(draw):
        rows = ranks * draw.integer(1, 3) if even else draw.integer(4, 6) * ranks + 1
        shapes: list[tuple[int, ...]] = [(rows, 1), (rows,)] if even else [(rows,), (1, ranks - 1), ()]
        cases = [_tensors(draw, ranks, *shape) for shape in shapes]
        yield ask(drivers.change_each, name="all_reduce", cases=cases, right=HALVES), cases


def _wrong_sums(told: Any, cases: list[list[Tensor]]) -> Iterator[Hint]:
    for at, given in enumerate(cases):
        yield from wrong_sum(told | {"results": [found[at] for found in told["results"]]}, given)


@part(
    "whole",
    1,
    en="The sum, where the size is a multiple of the ranks",
    zh="元素个数是 rank 数的倍数时，得到总和",
)
def even(ask: Ask, draw: Draw) -> Iterator[Hint]:
    for told, cases in _run_whole(ask, draw, True):
        yield from _wrong_sums(told, cases)


@part("whole", 2, en="The sum, for every size and shape", zh="任何大小、任何形状，都得到总和")
def uneven(ask: Ask, draw: Draw) -> Iterator[Hint]:
    for told, cases in _run_whole(ask, draw, False):
        yield from _wrong_sums(told, cases)


@part("whole", 2, en="No rank sends more than a ring needs", zh="没有哪个 rank 发得比环形要的更多")
def traffic(ask: Ask, draw: Draw) -> Iterator[Hint]:
    told, cases = next(_run_whole(ask, draw, False))
    yield from _wrong_sums(told, cases)
    ranks = len(cases[0])
    yield from wrong_bytes(told, sum(8 * (ranks - 1) * -(-given[0].numel() // ranks) for given in cases))


def _run_average(ask: Ask, draw: Draw, unused: bool) -> tuple[Any, list[list[Any]]]:
    ranks = draw.integer(2, 3)
    shapes = [(draw.integer(1, 3), 2), (3,), (draw.integer(1, 4),), (2, 2)]
    weights = [draw.tensor(*shape) for shape in shapes]
    gradients: list[list[Any]] = [
        [draw.tensor(*shape) + 10.0 * rank for shape in shapes] for rank in range(ranks)
    ]
    if unused:
        at = draw.integer(0, 3)
        for own in gradients:
            own[at] = None
    return ask(drivers.average_gradients, weights=weights, gradients=gradients, right=WHOLE), gradients


@part("average", 2, en="Every gradient is the average over the ranks", zh="每一份梯度都是各个 rank 的平均")
def average(ask: Ask, draw: Draw) -> Iterator[Hint]:
    yield from wrong_average(*_run_average(ask, draw, False))


@part("average", 1, en="All gradients travel in one ring", zh="所有梯度只绕一次环")
def one_ring(ask: Ask, draw: Draw) -> Iterator[Hint]:
    told, gradients = _run_average(ask, draw, False)
    yield from wrong_average(told, gradients)
    yield from wrong_rings(told)


@part("average", 1, en="A parameter without a gradient is left alone", zh="没有梯度的参数不去动它")
def no_gradient(ask: Ask, draw: Draw) -> Iterator[Hint]:
    yield from wrong_average(*_run_average(ask, draw, True))
