"""Exercises of lesson 16: the order of 1F1B, run on ranks; an exchange between neighbours; the bubble in four times."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import isclose
from random import Random
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from labkit.base.language import series
from labkit.base.texts import Text
from labkit.turns import Deadlock
from labkit_course.exercise import derive_facts, judge
from labkit_course.judging import Hints, Named, Unreadable
from labkit_course.kinds import a_function, number, read_returned
from labkit_ranks.plans.pipeline import Pipeline, pipeline

from .on_ranks import RanksRun, on_ranks

_WIDE = 3
# The numbers in a message larger than NCCL's 4 MiB buffer per connection.
_LONG = 1_100_000


@derive_facts(
    "16.length",
    stages=(4, 2, 64),
    pieces=(8, 1, 256),
    fresh=lambda random: {"stages": random.randint(2, 8), "pieces": random.randint(4, 16)},
)
def _length(stages: int, pieces: int) -> dict[str, int]:
    return {
        "length": 3 * (pieces + stages - 1),
        "ideal": 3 * pieces,
        "serial": 3 * pieces * stages,
        "off_by_one": 3 * (pieces + stages),
        "one_way": 3 * pieces + stages - 1,
    }


@derive_facts(
    "16.alive",
    stages=(8, 2, 64),
    pieces=(32, 1, 256),
    fresh=lambda random: {"stages": random.randint(2, 8), "pieces": random.randint(9, 40)},
)
def _alive(stages: int, pieces: int) -> dict[str, int]:
    return {"alive": min(stages, pieces), "one_fewer": stages - 1}


# The order of 1F1B.


@contextmanager
def _watch_schedules() -> Iterator[list[str]]:
    """Yield a list of the calls to PyTorch's or labkit's own schedules, until the end of the block."""
    called: list[str] = []

    def note(frame: FrameType, event: str, argument: object) -> None:
        file = frame.f_code.co_filename.replace("\\", "/")
        if event == "call" and (
            "/torch/distributed/pipelining/" in file or file.endswith("/plans/pipeline.py")
        ):
            called.append(frame.f_code.co_name)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield called
    finally:
        sys.setprofile(before)


@judge("16.order", a_function("one_f_one_b"))
def _order(answer: Callable[..., Any]) -> Hints:
    random = Random()
    drawn = random.randint(3, 5), random.randint(6, 9)
    for stages, pieces in ((4, 8), drawn, (4, 2), (1, 3)):
        with _watch_schedules() as called:
            orders = [_names(read_returned(answer(stage, stages, pieces))) for stage in range(stages)]
        if called:
            yield Named("borrowed", name=called[0])
        yield from _hints_on_plan(orders, stages, pieces)
        yield from _hints_on_gradients(orders, stages, pieces)


def _names(order: Any) -> list[str]:
    if not isinstance(order, (list, tuple)) or not all(isinstance(name, str) for name in order):
        raise Unreadable(
            Text(
                en='the function gives a list of texts such as `["F0", "B0"]`',
                zh='函数要返回一个由字符串组成的列表，例如 `["F0", "B0"]`',
            )
        )
    return list(order)


def _hints_on_plan(orders: list[list[str]], stages: int, pieces: int) -> Hints:
    """Yield hints on a schedule that need no run: missing tasks, deadlock, length and peak memory."""
    case = {"stages": stages, "pieces": pieces}
    wanted = sorted(f"{way}{piece}" for way in "FB" for piece in range(pieces))
    for stage, order in enumerate(orders):
        if sorted(order) != wanted:
            name = "few" if pieces < stages else "missing"
            yield Named(name, stage=stage, order=order, wrong=_describe_tasks(order, wanted), **case)
    try:
        made: Pipeline = pipeline(lambda stage, *_: orders[stage], stages, pieces)
    except ValueError as stuck:
        yield Named("stuck", words=str(stuck), **case)
        return
    right = pipeline("1F1B", stages, pieces)
    peaks, fewest = ([found.peak(at) for at in range(stages)] for found in (made, right))
    if peaks != fewest and len({*peaks}) == 1 and peaks[0] in (pieces, stages):
        yield Named("all_first" if peaks[0] == pieces else "same_ahead", peaks=peaks, **case)
    if made.length > right.length:
        yield Named("long", length=made.length, right=right.length, **case)
    if peaks != fewest:
        yield Named("alive", peaks=peaks, fewest=fewest, **case)


def _describe_tasks(order: list[str], wanted: list[str]) -> Text:
    """Describe the first task that a stage's list lacks, has twice, or should not have."""
    missing = next((name for name in wanted if name not in order), "")
    if missing:
        return Text(en=f"{missing} is missing", zh=f"少了 {missing}")
    name = next(name for name in order if name not in wanted or order.count(name) > 1)
    if name in wanted:
        return Text(en=f"{name} comes {order.count(name)} times", zh=f" {name} 出现了 {order.count(name)} 次")
    return Text(en=f"{name} is no task of this step", zh=f"多了这一步里没有的 {name}")


def _hints_on_gradients(orders: list[list[str]], stages: int, pieces: int) -> Hints:
    """Run a schedule on ranks and yield hints on wrong gradients."""
    rows = torch.randn(pieces, 2, _WIDE, generator=torch.Generator().manual_seed(pieces))
    ran = on_ranks(_run_stage, stages, [(order, rows) for order in orders]).require_success()
    layers = [_layer(stage) for stage in range(stages)]
    nn.Sequential(*layers)(rows).square().sum().backward()
    for stage, (layer, gradient) in enumerate(zip(layers, ran.results, strict=True)):
        assert layer[0].weight.grad is not None
        if not torch.allclose(gradient, layer[0].weight.grad, rtol=1e-4, atol=1e-5):
            yield Named("gradient", stage=stage, stages=stages, pieces=pieces)


def _layer(stage: int) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stage)
        return nn.Sequential(nn.Linear(_WIDE, _WIDE), nn.Tanh())


def _run_stage(order: Sequence[str], rows: Tensor) -> Tensor | None:
    """Run one stage's tasks in ``order`` and return the gradient of the weights."""
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    layer, kept, sent = _layer(rank).cuda(), {}, []
    for name in order:
        piece = int(name[1:])
        if name[0] == "F":
            x = (rows[piece].clone() if rank == 0 else _receive(rows[piece], rank - 1)).requires_grad_()
            kept[piece] = x, layer(x)
            if rank < last:
                sent.append(dist.isend(kept[piece][1].detach(), rank + 1))
        else:
            x, y = kept.pop(piece)
            y.backward(2 * y.detach() if rank == last else _receive(y, rank + 1))
            if rank and x.grad is not None:
                sent.append(dist.isend(x.grad, rank - 1))
    for work in sent:
        if work is not None:
            work.wait()
    gradient: Tensor | None = layer[0].weight.grad
    return gradient


def _receive(like: Tensor, source: int) -> Tensor:
    found = torch.empty_like(like)
    dist.recv(found, source)
    return found


# The exchange between neighbours.


@judge("16.exchange", a_function("exchange"))
def _exchange(answer: Callable[..., Any]) -> Hints:
    changed = set[int]()

    def part(activation: Tensor, gradient: Tensor) -> tuple[Any, Any]:
        rank, last = dist.get_rank(), dist.get_world_size() - 1
        given = [tensor[0].item() for tensor in (activation, gradient)]
        found = answer(activation, gradient, rank - 1 if rank else None, rank + 1 if rank < last else None)
        if not isinstance(found, (tuple, list)) or len(found) != 2:
            raise TypeError(f"exchange gave {type(found).__name__}, not what came from before and from after")
        if given != [tensor[0].item() for tensor in (activation, gradient)]:
            changed.add(rank)
        # Compare only the first and the last number: the message is long.
        return tuple(x[[0, -1]].tolist() if isinstance(x, Tensor) and x.numel() else None for x in found)  # type: ignore[return-value]

    for ranks in (2, 3, 5):
        sent = torch.randn(ranks, 2, 1).expand(ranks, 2, _LONG)
        ran = on_ranks(part, ranks, [(there.contiguous(), back.contiguous()) for there, back in sent])
        yield from _hung(ran, ranks)
        failed = ran.failure
        if (
            failed
            and failed.rank in (0, ranks - 1)
            and ("global_rank" in failed.words or "None" in failed.words)
        ):
            yield Named("no_neighbour", ranks=ranks, rank=failed.rank, error=failed.words)
        ran.require_success()
        # An all_to_all of empty tensors for all but the neighbours is just the two messages.
        more = any(event.name == "all_to_all" and event.nbytes > 8 * _LONG for event in ran.events)
        if more or ran.call_kinds("all_gather", "all_reduce", "broadcast", "gather", "scatter"):
            yield Named("everybody", ranks=ranks)
        yield from _check_received(ran.results, sent[:, :, 0].tolist(), ranks)
        if changed:
            yield Named("changed", ranks=ranks, rank=min(changed))


def _hung(ran: RanksRun, ranks: int) -> Hints:
    if ran.failure is None or not isinstance(ran.failure.error, Deadlock):
        return
    waits = getattr(ran.failure.error, "waits", None)
    calls = {wait.call for wait in waits.ranks if wait.state == "waits"} if waits else set()
    name = (
        "two_alone"
        if ranks > 2
        else {"send": "both_send", "recv": "both_receive"}.get("".join(calls), "hangs")
    )
    yield Named(name, ranks=ranks, calls=series(sorted(calls)))


def _check_received(results: list[Any], sent: list[Any], ranks: int) -> Hints:
    for rank, (on, back) in enumerate(results):
        wanted = [
            [sent[rank - 1][0]] * 2 if rank else None,
            [sent[rank + 1][1]] * 2 if rank < ranks - 1 else None,
        ]
        for place, (got, right) in enumerate(zip((on, back), wanted, strict=True)):
            if right is None or got == right:
                continue
            if (on, back)[1 - place] == right:
                yield Named("turned", rank=rank, ranks=ranks)
            sender = rank + 1 if place else rank - 1
            yield Named("not_there" if place else "not_on", rank=rank, ranks=ranks, sender=sender)


# BLOOM's four times.


def _read_two_numbers(answer: object) -> tuple[float, float]:
    if isinstance(getattr(answer, "shape", None), tuple):  # a tensor, or numpy.polyfit's array
        answer = torch.as_tensor(answer).flatten().tolist()
    if not isinstance(answer, (list, tuple)) or len(answer) != 2:
        raise Unreadable
    each, fixed = answer
    return number(each), number(fixed)


@judge("16.bloom", _read_two_numbers)
def _bloom(answer: tuple[float, float]) -> Hints:
    each, fixed = answer
    if isclose(each, 0.742, rel_tol=0.01) and isclose(fixed, 12.0, rel_tol=0.05):
        return
    if isclose(fixed, 0.742, rel_tol=0.01):
        yield Named("turned")
    rows = {
        0.742 / 16: "by_row",
        0.742 / 8: "by_replica",
        0.742 / 2: "by_two",
        107.12 / 128: "divided",
        35.77 / 32: "divided",
    }
    for wrong, name in rows.items():
        if isclose(each, wrong, rel_tol=0.012):
            yield Named(name, each=each)
    yield Named("fixed" if isclose(each, 0.742, rel_tol=0.01) else "slope", each=each, fixed=fixed)
