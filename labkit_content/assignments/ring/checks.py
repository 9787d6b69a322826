"""Hints for wrong answers, and the student's ``check(...)``, which tries an open example on four ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from inspect import getsource
from typing import Any

import torch
from torch import Tensor

from labkit_classroom.checking import Student, visible
from labkit_classroom.judging import same
from labkit_classroom.verdict import Hint

from . import drivers, right

# Sources for later questions: the two halves, and then the whole.
HALVES = "\n\n".join(
    [getsource(right.pass_around), getsource(right.reduce_scatter), getsource(right.all_gather)]
)
WHOLE = f"{HALVES}\n\n{getsource(right.all_reduce)}"


def wrong_way(told: Any) -> Iterator[Hint]:
    """Checks that the ranks came to an end, by messages alone."""
    if told["stuck"]:
        who = " ".join(str(told["stuck"][0]).split())[:160]
        yield Hint(
            "stuck",
            f"it hangs: {who}. If all send before any receives, the first message of two ranks waits for ever, and every "
            "large one (`isend`, too): post the sending and the receiving at once, with `batch_isend_irecv`",
            f"卡住了：{who}。要是大家都先发后收，两个 rank 之间的第一条消息就会永远等下去，大的消息也是（用 `isend` 也一样）："
            "可以用 `batch_isend_irecv` 把发送和接收同时提交",
        )
    if others := [kind for kind in told["called"] if kind not in ("send", "recv")]:
        yield Hint(
            "collective",
            f"`{others[0]}` was called: the sum is to be built of single messages",
            f"调用了 `{others[0]}`：要用一条一条的消息来搭出这个和",
        )


def wrong_first(told: Any, given: Sequence[Tensor]) -> Iterator[Hint]:
    """Checks that chunk r + 1 of rank r holds the sum."""
    yield from wrong_way(told)
    ranks, total = len(given), torch.stack(list(given)).sum(0)
    for rank, got in enumerate(told["results"]):
        chunk = (rank + 1) % ranks
        if same(got[chunk], total[chunk], 1e-4):
            continue
        if same(got, given[rank]):
            yield Hint(
                "unchanged",
                f"the chunks of rank {rank} have not changed: what it receives must be added to `chunks`",
                f"rank {rank} 的分块没有变过：收到的要加到 `chunks` 里",
            )
        finished = [c for c in range(ranks) if same(got[c], total[c], 1e-4)]
        if finished:
            yield Hint(
                "another-chunk",
                f"of {ranks} ranks rank {rank} has finished chunk {finished[0]}; it is to be chunk {chunk}: "
                "which chunk does a rank send first?",
                f"{ranks} 个 rank 时，rank {rank} 加完的是分块 {finished[0]}，应该是分块 {chunk}：每个 rank 最先发的是哪个分块？",
            )
        if any(same(got[chunk], own[chunk], 1e-4) for own in given):
            yield Hint(
                "replaced",
                f"chunk {chunk} of rank {rank} is one rank's own: what arrives is added, and the sum is sent on",
                f"rank {rank} 的分块 {chunk} 还是某一个 rank 自己的：收到的要加上去，再把和往下发",
            )
        yield Hint(
            "sum",
            f"with {ranks} ranks chunk {chunk} of rank {rank} is not the sum: a rank sends on what it has just received",
            f"{ranks} 个 rank 时，rank {rank} 的分块 {chunk} 不是总和：每个 rank 发出的应该是刚收到的那个分块",
        )


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
            yield Hint(
                "added",
                f"chunk {added[0]} of rank {rank}: what arrives is finished, and takes the place of what was there",
                f"rank {rank} 的分块 {added[0]}：收到的已经是加完的了，应该替换原来的",
            )
        if right == [(rank + 1) % ranks]:
            yield Hint(
                "unchanged",
                f"rank {rank} still has its one finished chunk alone: which one does it send first?",
                f"rank {rank} 上仍然只有自己那个加完的分块：最先发的应该是哪个？",
            )
        yield Hint(
            "chunks",
            f"with {ranks} ranks only chunks {right} of rank {rank} are finished",
            f"{ranks} 个 rank 时，rank {rank} 上加完的只有分块 {right}",
        )


def wrong_sum(told: Any, given: Sequence[Tensor]) -> Iterator[Hint]:
    """Checks that every rank's tensor holds the sum."""
    yield from wrong_way(told)
    ranks, total = len(given), torch.stack(list(given)).sum(0)
    for rank, got in enumerate(told["results"]):
        if same(got, total, 1e-4):
            continue
        if ranks > 1 and same(got, given[rank]):
            yield Hint("unchanged", f"`x` has not changed on rank {rank}", f"rank {rank} 上的 `x` 没有变过")
        flat, right = got.flatten(), total.flatten()
        wrong = [at for at in range(len(right)) if not same(flat[at], right[at], 1e-3)]
        if 0 < len(wrong) <= len(right) // 2 and wrong[-1] == len(right) - 1:
            yield Hint(
                "rest",
                f"{len(right)} numbers on {ranks} ranks: the last {len(wrong)} are wrong. Who takes what is left over?",
                f"{ranks} 个 rank、{len(right)} 个数：最后 {len(wrong)} 个不对。余下的那些由谁来管？",
            )
        yield Hint(
            "sum",
            f"{len(right)} numbers on {ranks} ranks: rank {rank} does not have the sum",
            f"{ranks} 个 rank、{len(right)} 个数：rank {rank} 手里不是总和",
        )


def wrong_bytes(told: Any, most: int) -> Iterator[Hint]:
    """Checks that no rank sends more than ``most`` bytes, nor to another than the next one."""
    ranks = len(told["results"])
    if told["sent"] and max(told["sent"]) > most:
        worst = max(told["sent"])
        yield Hint(
            "bytes",
            f"with {ranks} ranks a rank sends {worst} bytes; a ring needs {most}: each step sends one chunk",
            f"{ranks} 个 rank 时，有的 rank 发出了 {worst} 字节；环形只要 {most}：每一步只发一个分块",
        )
    if any(target != (source + 1) % ranks for source, target in told["to"]):
        yield Hint(
            "neighbour",
            "somebody sends to another than the next rank: then that link is the one that all wait for",
            "有的 rank 发给了别的 rank，而不是下一个：那条链路就成了大家都要等的那条",
        )


def wrong_average(told: Any, gradients: Sequence[Sequence[Any]]) -> Iterator[Hint]:
    """Check that every gradient is the average, and missing ones are still missing."""
    yield from wrong_way(told)
    ranks = len(gradients)
    for rank, found in enumerate(told["results"]):
        for at, got in enumerate(found):
            own = [each[at] for each in gradients]
            if own[0] is None:
                if got is not None:
                    yield Hint(
                        "invented",
                        f"parameter {at} had no gradient, and has one now: an optimizer would move it",
                        f"参数 {at} 本来没有梯度，现在却有了：优化器会去更新它",
                    )
                continue
            total = torch.stack(own).sum(0)
            if got is not None and same(got, total / ranks, 1e-4):
                continue
            if got is not None and same(got, total, 1e-4):
                yield Hint(
                    "not-divided",
                    f"with {ranks} ranks the gradient is {ranks} times too large: that is the sum",
                    f"{ranks} 个 rank 时，梯度大了 {ranks} 倍：这是总和",
                )
            if got is not None and same(got, own[rank]):
                yield Hint(
                    "own",
                    f"parameter {at} of rank {rank} still has its own gradient: is the result put back?",
                    f"rank {rank} 的参数 {at} 还是自己的梯度：结果放回去了吗？",
                )
            yield Hint(
                "average",
                f"the gradient of parameter {at} on rank {rank} is not the average over the ranks",
                f"rank {rank} 上，参数 {at} 的梯度不是各个 rank 的平均",
            )


def wrong_rings(told: Any) -> Iterator[Hint]:
    """Checks that all gradients go around together."""
    ranks = len(told["results"])
    sent = max(told["messages"], default=0)
    if sent > 2 * (ranks - 1):
        yield Hint(
            "rings",
            f"a rank sends {sent} messages; one ring has {2 * (ranks - 1)}: each costs latency, so put them together first",
            f"一个 rank 发出了 {sent} 条消息；绕一次环只要 {2 * (ranks - 1)} 条：每条都有延迟，所以要先拼到一起",
        )


_RANKS = 4


def _some(*shape: int) -> list[Tensor]:
    return [
        torch.arange(1.0, 1 + torch.Size(shape).numel()).reshape(shape) + 100.0 * r for r in range(_RANKS)
    ]


@visible("first", "reduce_scatter", en="a function of `chunks`", zh="一个以 `chunks` 为参数的函数")
def _first(student: Student) -> Iterator[Hint]:
    given = _some(_RANKS, 3)
    told = drivers.change_tensors(student, "reduce_scatter", given)
    yield from wrong_first(told, given)
    yield from wrong_bytes(told, 3 * 3 * 4)


@visible("second", "all_gather", en="a function of `chunks`", zh="一个以 `chunks` 为参数的函数")
def _second(student: Student) -> Iterator[Hint]:
    given = _some(_RANKS, 3)
    total = torch.stack([given[chunk - 1][chunk] for chunk in range(_RANKS)])
    told = drivers.change_tensors(student, "all_gather", given)
    yield from wrong_second(told, given, total)
    yield from wrong_bytes(told, 3 * 3 * 4)


@visible("whole", "all_reduce", en="a function of `x`", zh="一个以 `x` 为参数的函数")
def _run_whole(student: Student) -> Iterator[Hint]:
    for given in (_some(8), _some(2, 5)):
        told = drivers.change_tensors(student, "all_reduce", given, HALVES)
        yield from wrong_sum(told, given)
        yield from wrong_bytes(told, 6 * -(-given[0].numel() // _RANKS) * 4)


@visible("average", "average", en="a function of `model`", zh="一个以 `model` 为参数的函数")
def _average(student: Student) -> Iterator[Hint]:
    weights = [torch.ones(2, 3), torch.ones(2), torch.ones(3)]
    gradients = [[torch.ones(2, 3) * rank, torch.arange(2.0) + rank, None] for rank in range(_RANKS)]
    told = drivers.average_gradients(student, weights, gradients, WHOLE)
    yield from wrong_average(told, gradients)
    yield from wrong_rings(told)
