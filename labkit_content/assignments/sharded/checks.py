"""Hints for wrong answers, and the student's ``check(...)``, which tries an open example."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from labkit_classroom.checking import Student, visible
from labkit_classroom.judging import NoAnswer, same
from labkit_classroom.verdict import Hint

from . import drivers

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
            raise NoAnswer(
                Hint(
                    "kind", "`owners` should return a list of ranks", "`owners` 应该返回一个 rank 编号的列表"
                )
            )
        wanted, got = right_owners(sizes, ranks), list(map(int, got))
        if got == wanted:
            continue
        if len(got) != len(sizes):
            yield Hint(
                "length",
                f"{len(sizes)} parameters have {len(got)} owners: one for each, in their order",
                f"{len(sizes)} 个参数，却有 {len(got)} 个主人：每个参数一个，顺序不变",
            )
        if any(not 0 <= one < ranks for one in got):
            yield Hint(
                "no-such",
                f"with {ranks} ranks there is no rank {next(one for one in got if not 0 <= one < ranks)}",
                f"{ranks} 个 rank，没有编号 {next(one for one in got if not 0 <= one < ranks)}",
            )
        held = [
            sum(size for size, one in zip(sizes, got, strict=True) if one == rank) for rank in range(ranks)
        ]
        if turns:
            yield Hint(
                "in-turn",
                f"sizes {list(sizes)} in turn: the ranks keep {held} numbers. Do sizes play no role?",
                f"大小 {list(sizes)}，一个一个轮流分：各 rank 存 {held} 个数。大小不用考虑吗？",
            )
        if came:
            yield Hint(
                "as-they-come",
                f"sizes {list(sizes)} in the order of the model: the ranks keep {held}. Which should be dealt first?",
                f"大小 {list(sizes)}，按模型里的顺序分：各 rank 存 {held} 个数。应该先分哪些？",
            )
        yield Hint(
            "owners",
            f"sizes {list(sizes)} on {ranks} ranks: {got} makes them keep {held}; it should be {wanted}",
            f"大小 {list(sizes)}，{ranks} 个 rank：{got} 让各 rank 存 {held}；应该是 {wanted}",
        )


def _report_end(told: Any) -> Iterator[Hint]:
    """Checks that the ranks came to an end."""
    if told["stuck"]:
        who = " ".join(str(told["stuck"][0]).split())[:160]
        yield Hint(
            "stuck",
            f"it hangs: {who}. Every rank has to take part in a collective, its owner and the others",
            f"卡住了：{who}。集合通信要所有 rank 都参加，不管是不是主人",
        )


def wrong_state(told: Any, owner: Sequence[int]) -> Iterator[Hint]:
    yield from _report_end(told)
    for rank, found in enumerate(told["results"]):
        wanted = [at for at, mine in enumerate(owner) if mine == rank]
        if found is None or not wanted:
            if found is not None:
                yield Hint(
                    "not-none",
                    f"rank {rank} owns nothing, and should return `None`",
                    f"rank {rank} 一个参数也没有，应该返回 `None`",
                )
            if wanted:
                yield Hint(
                    "none",
                    f"rank {rank} owns {len(wanted)} parameters, and returns `None`",
                    f"rank {rank} 拥有 {len(wanted)} 个参数，却返回了 `None`",
                )
            continue
        if len(found["held"]) == len(owner) > len(wanted):
            yield Hint(
                "everything",
                f"the optimizer of rank {rank} keeps state for all {len(owner)} parameters: that is DDP",
                f"rank {rank} 的优化器管着全部 {len(owner)} 个参数：这就是 DDP 的做法",
            )
        if sorted(found["held"]) != wanted:
            yield Hint(
                "other-parameters",
                f"rank {rank} has parameters {sorted(found['held'])} (-1: a copy), it owns {wanted}",
                f"rank {rank} 管着参数 {sorted(found['held'])}（-1 表示拷贝），它拥有的是 {wanted}",
            )
        if not found["ours"]:
            yield Hint("not-made", "the optimizer was not made by `make`", "这个优化器不是用 `make` 创建的")


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
                yield Hint(
                    "unused",
                    f"parameter {at} had no gradient, and has changed on rank {rank}",
                    f"参数 {at} 没有梯度，rank {rank} 上却变了",
                )
            if ranks > 1 and same(got, total[at], 1e-4):
                yield Hint(
                    "sum",
                    f"with {ranks} ranks the step is {ranks} times too long: that is the sum of the gradients",
                    f"{ranks} 个 rank 时，这一步走了 {ranks} 倍远：用的是梯度之和",
                )
            if same(got, weights[at]) and not mine:
                yield Hint(
                    "not-sent",
                    f"parameter {at} belongs to rank {owner[at]}; rank {rank} still has its old values",
                    f"参数 {at} 的主人是 rank {owner[at]}；rank {rank} 上还是旧的值",
                )
            if same(got, own[owner[at]][at], 1e-4):
                yield Hint(
                    "own-gradient",
                    f"parameter {at} is updated by its owner's gradient alone: what of the other ranks' rows?",
                    f"参数 {at} 只按主人自己的梯度更新了：别的 rank 的那些行呢？",
                )
            if same(got, weights[at]):
                yield Hint(
                    "unchanged",
                    f"parameter {at} has not changed on rank {rank}, who owns it",
                    f"rank {rank} 是参数 {at} 的主人，那里却没有变",
                )
            yield Hint(
                "weights",
                f"after {len(gradients)} steps on {ranks} ranks parameter {at} of rank {rank} is not what one "
                "optimizer would make of the mean gradients",
                f"{ranks} 个 rank 走 {len(gradients)} 步之后，rank {rank} 上的参数 {at} 不是一个优化器按平均梯度得到的值",
            )


def wrong_bytes(told: Any, numbers: int) -> Iterator[Hint]:
    """Checks that in all steps no more travels than ``numbers`` numbers there and back."""
    sent = sum(_TIMES.get(name, 1) * nbytes for name, nbytes in told["calls"]) / 4
    if sent > 2.01 * numbers:
        whole = any(name == "all_reduce" and nbytes for name, nbytes in told["calls"])
        why = ("all ranks get sums that only the owner needs", "主人才用得着的和，却给了所有 rank")
        en, zh = why if whole else ("what travels twice?", "什么传了两遍？")
        yield Hint(
            "bytes",
            f"{sent / numbers:.3g} numbers travel for each gradient; an all-reduce has 2: {en}",
            f"每个梯度要传 {sent / numbers:.3g} 个数，而全归约只有 2 个：{zh}",
        )


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
            yield Hint(
                "never",
                "after the last part no gradient was reduced: every rank has only its own",
                "最后一份之后，还是没有归约梯度：每个 rank 只有自己的",
            )
        if runs != count:
            yield Hint(
                "runs",
                f"for {count} parts the model ran {runs} times: one at a time is what spares memory",
                f"{count} 份数据，模型运行了 {runs} 次：一份一份来，才省显存",
            )
        for gradient, leaf in zip(gradients, leaves, strict=True):
            assert leaf.grad is not None
            if same(gradient, leaf.grad, 1e-3):
                continue
            if same(gradient, leaf.grad * count, 1e-3):
                yield Hint(
                    "sum",
                    f"the gradients are {count} times too large: the mean over {count} parts is wanted",
                    f"梯度大了 {count} 倍：要的是 {count} 份的平均",
                )
            yield Hint(
                "gradient",
                "the gradients are not those of the mean over all parts and ranks: is it the last part that reduces?",
                "梯度不是对所有份、所有 rank 取平均的：做归约的是最后一份吗？",
            )
    reduced = sum(name.startswith("reduce_scatter") for name, _ in told["calls"])
    if once and reduced > len(weights):
        yield Hint(
            "each",
            f"{len(weights)} units and {count} parts make {reduced} exchanges: FSDP2 has no `no_sync`, but a switch",
            f"{len(weights)} 个单元、{count} 份，交换了 {reduced} 次：FSDP2 没有 `no_sync`，但有一个开关",
        )


@visible(
    "owners", "owners", en="a function of `sizes` and `ranks`", zh="一个以 `sizes` 和 `ranks` 为参数的函数"
)
def _owners(student: Student) -> Iterator[Hint]:
    cases = [([4, 1, 4], 2), ([1, 2, 3, 4, 5], 2), ([6, 5, 4, 3, 2, 1], 3)]
    yield from wrong_owners(drivers.assign_owners(student, cases), cases)


_WEIGHTS = [torch.ones(2, 3), torch.ones(2), torch.ones(3)]


@visible(
    "state",
    "own_optimizer",
    en="a function of `model`, `owner` and `make`",
    zh="一个以 `model`、`owner`、`make` 为参数的函数",
)
def _state(student: Student) -> Iterator[Hint]:
    yield from wrong_state(drivers.make_optimizers(student, _WEIGHTS, [0, 1, 1], 3), [0, 1, 1])


@visible(
    "step",
    "step",
    en="a function of `model`, `owner` and `optimizer`",
    zh="一个以 `model`、`owner`、`optimizer` 为参数的函数",
)
def _step(student: Student) -> Iterator[Hint]:
    gradients = [[[weight * (rank + 1) for weight in _WEIGHTS[:2]] + [None] for rank in range(3)]] * 2
    rates = [1.0, 0.5, 0.25]
    told = drivers.take_steps(student, _WEIGHTS, gradients, [0, 1, 1], rates)
    yield from wrong_step(told, _WEIGHTS, gradients, [0, 1, 1], rates)
    yield from wrong_bytes(told, 2 * 8)


@visible(
    "parts",
    "accumulate",
    en="a function of `model`, `parts` and `loss`",
    zh="一个以 `model`、`parts`、`loss` 为参数的函数",
)
def _parts(student: Student) -> Iterator[Hint]:
    weights = [torch.eye(4) + 0.5, torch.eye(4) * 2 + 0.25]
    parts = [torch.arange(24.0).reshape(3, 2, 4) / 8 + rank for rank in range(2)]
    yield from wrong_parts(drivers.accumulate(student, weights, parts), weights, parts, True)
