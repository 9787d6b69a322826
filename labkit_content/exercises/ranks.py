"""Exercises of lesson 10: a step shared by all ranks, a rank's own GPU, and the first hang put right."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from random import Random
from typing import Any

import torch
from torch import Tensor, nn

from labkit_course.exercise import derive_facts, judge
from labkit_course.judging import Hints, Named
from labkit_course.kinds import SOME_WHOLE_NUMBERS, a_function, quote_value, read_returned

from .on_ranks import on_ranks

_ROWS = 12


def _is_close(one: Tensor, other: Tensor) -> bool:
    return torch.allclose(one, other, rtol=1e-4, atol=1e-5)


@judge("10.step", a_function("train_step"))
def _step(answer: Callable[..., Any]) -> Hints:
    for ranks in (2, 1, 4, 3):
        weights, rows = [torch.randn(1, 3), torch.randn(1)], torch.randn(_ROWS, 3)
        model = _model(weights)
        losses = model(rows).square().flatten()
        losses.mean().backward()
        want = _gradients(model)
        ran = on_ranks(lambda *given: _one_step(answer, *given), ranks, [(*weights, rows)] * ranks)
        said = {"ranks": ranks, "rows": _ROWS}
        if ran.failure and "cannot be multiplied" in ran.failure.words:
            yield Named("columns", words=ran.failure.words)
        for rank, (seen, got, _, kept) in enumerate(ran.require_success().results):
            if not all(map(torch.equal, kept, weights)):
                yield Named("weights", rank=rank)
            if seen == _ROWS and ranks > 1:
                yield Named("everything", rank=rank, seen=seen, **said)
            if any(gradient is None for gradient in got):
                yield Named("no_gradient", rank=rank)
        gradients = [got for _, got, *_ in ran.results]
        for rank, got in enumerate(gradients):
            right = [_is_close(one, other) for one, other in zip(got, want, strict=True)]
            if all(right):
                continue
            if _is_close(got[0], want[0] * ranks):
                yield Named("sum", **said)
            if ranks > 1 and _is_close(got[0] * ranks, want[0]):
                yield Named("divided", **said)
            if right[0]:
                yield Named("some")
            if not _is_close(got[0], gradients[rank - 1][0]):
                yield Named("own", rank=rank)
            yield Named("other", **said)
        mean = float(losses.detach().mean())
        for rank, (_, _, told, _) in enumerate(ran.results):
            if isinstance(
                read_returned(told, en="`train_step`", zh="`train_step` "), (Tensor, list, tuple, str)
            ):
                yield Named("loss_kind")
            if abs(told - mean) > 1e-4 * (1 + mean):
                own = any(abs(told - other) > 1e-4 for _, _, other, _ in ran.results)
                yield Named("loss_own" if own else "loss_other", rank=rank, got=told, want=mean)


def _model(weights: list[Tensor]) -> nn.Linear:
    model = nn.Linear(3, 1)
    with torch.no_grad():
        for parameter, value in zip(model.parameters(), weights, strict=True):
            parameter.copy_(value)
    return model


def _gradients(model: nn.Module) -> list[Any]:
    return [None if weight.grad is None else weight.grad.detach().clone() for weight in model.parameters()]


def _one_step(answer: Callable[..., Any], weight: Tensor, bias: Tensor, rows: Tensor) -> tuple[Any, ...]:
    """Return the rows that the model saw, its gradients, the learner's result, and the weights afterwards."""
    model = _model([weight.cpu(), bias.cpu()]).cuda()
    seen: list[int] = []
    model.register_forward_pre_hook(lambda module, given: seen.append(len(given[0])))
    told = answer(model, rows)
    return sum(seen), _gradients(model), told, list(model.parameters())


def _another_rank(random: Random) -> dict[str, int]:
    nodes, each = random.randint(2, 4), random.randint(3, 8)
    return {"nodes": nodes, "each": each, "rank": random.randrange(each, nodes * each)}


@derive_facts("10.who", nodes=(2, 1, 64), each=(4, 1, 64), rank=(6, 0, 4095), fresh=_another_rank)
def _derive_who(nodes: int, each: int, rank: int) -> dict[str, int]:
    return {"node": rank // each, "local": rank % each, "size": nodes * each, "last": each - 1}


@judge("10.who", SOME_WHOLE_NUMBERS)
def _node_and_local(answer: tuple[int, ...], nodes: int, each: int, rank: int) -> Hints:
    right = rank // each, rank % each
    if answer == right:
        return
    if len(answer) != 2:
        yield Named("two")
    if answer[::-1] == right:
        yield Named("swapped")
    if answer == (rank % nodes, rank // nodes):
        yield Named("dealt")
    if answer[1] == rank:
        yield Named("global")
    if answer in [(right[0] + 1, right[1] + 1), (right[0] + 1, right[1]), (right[0], right[1] + 1)]:
        yield Named("from_one")
    yield Named("other")


@judge("10.start", a_function("start"))
def _start(answer: Callable[..., Any]) -> Hints:
    def start_on_gpu() -> tuple[Any, int, bool]:
        torch.cuda.set_device(0)
        before = os.environ.get("CUDA_VISIBLE_DEVICES")
        return answer(), torch.cuda.current_device(), os.environ.get("CUDA_VISIBLE_DEVICES") != before

    for nodes, each in ((1, 4), (2, 2), (3, 3)):
        said = {"nodes": nodes, "each": each}
        ran = on_ranks(start_on_gpu, nodes * each, nodes=nodes)
        if ran.failure:
            error, words = ran.failure.error, ran.failure.words
            if "Invalid device string" in words:
                yield Named("text", words=words)
            if isinstance(error, NameError) and error.name in ("rank", "local_rank", "world_size", "device"):
                yield Named("cells", name=f"`{error.name}`")
            ordinal = "invalid device ordinal" in words
            yield Named("rank" if ordinal else "raises", rank=ran.failure.rank, words=words, **said)
            return
        taken: dict[tuple[int, int], int] = {}
        for rank, (told, gpu, hides) in enumerate(ran.results):
            if hides and gpu != rank % each:
                yield Named("visible")
            told = told.index if isinstance(told, torch.device) else told
            if told != gpu == 0 and told == rank % each:
                yield Named("not_current", rank=rank, gpu=told, current=gpu)
            other = taken.setdefault((rank // each, gpu), rank)
            if other != rank:
                yield Named("shared", rank=other, other=rank, gpu=gpu, node=rank // each, **said)
            if told != gpu:
                yield Named("not_told", rank=rank, gpu=quote_value(told), current=gpu)


@judge("10.report", a_function("report"))
def _report(answer: Callable[..., Any]) -> Hints:
    for ranks in (4, 2, 1):
        losses = torch.rand(ranks) + torch.arange(1, ranks + 1)
        ran = on_ranks(answer, ranks, [(loss,) for loss in losses])
        first, *others = ran.require_success().results
        for rank, told in enumerate(others, 1):
            if told is not None:
                yield Named("everyone", rank=rank)
        found = re.search(r"(\d+\.\d+)\W*$", str(first))
        got, want = float(found[1]) if found else 0.0, float(losses.mean())
        if abs(got - want) < 0.006 and isinstance(first, str):
            continue
        said = {"got": f"`{first}`", "ranks": ranks, "want": want}
        wrongs = (
            ("own", losses[0]),
            ("own", losses[0] / ranks),
            ("sum", losses.sum()),
            ("twice", want / ranks),
        )
        for name, wrong in wrongs:
            if found and abs(got - float(wrong)) < 0.006:
                yield Named(name, **said)
        yield Named("other", **said)
