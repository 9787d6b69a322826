"""Exercises of lesson 15: forward and backward of a column/row pair, heads, gradients of LayerNorm."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from labkit_course.exercise import judge
from labkit_course.judging import Hints, Named
from labkit_course.kinds import a_function, read_returned

from .on_ranks import on_ranks, watch_new

_ANEW = Random()
_NAMES = ("the output", "x", "W1", "W2")


def _forward_and_backward(pair: Callable[..., Any]) -> Callable[..., list[Tensor | None]]:
    """Return a function for each rank that returns the pair's output and the gradients of x and both slices."""

    def work(x: Tensor, w1: Tensor, w2: Tensor, slope: Tensor) -> list[Tensor | None]:
        leaves = [tensor.requires_grad_() for tensor in (x, w1, w2)]
        output = read_returned(pair(*leaves))
        (output * slope).sum().backward()
        return [output, *(leaf.grad for leaf in leaves)]

    return work


def _alone(x: Tensor, w1: Tensor, w2: Tensor, slope: Tensor) -> list[Tensor]:
    leaves = [tensor.clone().requires_grad_() for tensor in (x, w1, w2)]
    output = torch.relu(leaves[0] @ leaves[1]) @ leaves[2]
    (output * slope).sum().backward()
    return [output.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)]


@judge("15.pair", a_function("pair"))
def _pair(pair: Callable[..., Any]) -> Hints:
    for ranks in (2, 4):
        rows, width, hidden = _ANEW.randint(2, 4), _ANEW.randint(3, 6), ranks * _ANEW.randint(6, 9)
        x, slope = torch.randn(rows, width), torch.randn(rows, width)
        w1, w2 = torch.randn(width, hidden), torch.randn(hidden, width)
        given = [
            (x, one, two, slope) for one, two in zip(w1.chunk(ranks, 1), w2.chunk(ranks, 0), strict=True)
        ]
        right = _alone(x, w1, w2, slope)
        with watch_new(DeviceMesh) as made:
            ran = on_ranks(_forward_and_backward(pair), ranks, given).require_success()
        if made:
            yield Named("ready_made")
        for rank, found in enumerate(ran.results):
            wanted = [right[0], right[1], right[2].chunk(ranks, 1)[rank], right[3].chunk(ranks, 0)[rank]]
            part = _alone(*given[rank])
            for at in (0, 2, 3, 1):
                yield from _compare(found[at], wanted[at], at, part[at], rank=rank, ranks=ranks)
        count = max(sum(event.rank == rank for event in ran.events) for rank in range(ranks))
        if count > 2:
            yield Named("calls", count=count)


def _compare(found: Tensor | None, wanted: Tensor, at: int, part: Tensor, *, rank: int, ranks: int) -> Hints:
    """Yield hints on one of a rank's tensors; ``part`` is the value without the other ranks."""
    if found is None:
        yield Named("no_gradient", name=_NAMES[at], rank=rank)
        return
    if _close(found, wanted):
        return
    if at < 2 and _close(found, part):
        yield Named("unsummed" if at == 0 else "x_partial", rank=rank, ranks=ranks)
    if _close(found, wanted * ranks):
        yield Named("twice" if at else "output_twice", name=_NAMES[at], ranks=ranks)
    if at == 1 and _close(found * ranks, wanted):
        yield Named("x_mean", ranks=ranks)
    yield Named(
        "other" if at else "output_other", name=_NAMES[at], ranks=ranks, by=_difference(found, wanted)
    )


def _close(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.allclose(one, other, rtol=1e-4, atol=1e-5)


def _difference(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().max()) if one.shape == other.shape else float("inf")


def _attention(x: Tensor, matrices: tuple[Tensor, ...], heads: int) -> Tensor:
    batch, length, _ = x.shape
    q, k, v = ((x @ w).view(batch, length, heads, -1).transpose(1, 2) for w in matrices)
    return nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


@judge("15.attend", a_function("attend"))
def _attend(attend: Callable[..., Any]) -> Hints:
    # Start with 4 ranks, so that later cases catch a hard-coded 4.
    for ranks, heads, width in ((4, 8, 12), (2, 6, 6), (1, 3, 4)):
        across = heads * width
        x = torch.randn(2, _ANEW.randint(3, 6), across)
        matrices = tuple(torch.randn(across, across) / across**0.5 for _ in range(3))
        given = [(x, *(w.chunk(ranks, 1)[rank] for w in matrices), heads) for rank in range(ranks)]
        ran = on_ranks(attend, ranks, given)
        if ran.failure and isinstance(ran.failure.error, TypeError) and "float" in ran.failure.words:
            yield Named("fraction", error=ran.failure.words)
        if ran.failure and ranks != 4:
            yield Named("fixed", ranks=ranks)
        whole = _attention(x, matrices, heads)
        facts = {
            "heads": heads,
            "ranks": ranks,
            "own": heads // ranks,
            "width": width,
            "narrow": width // ranks,
        }
        for rank, found in enumerate(ran.require_success().results):
            found, wanted = read_returned(found), whole.chunk(ranks, 2)[rank]
            own = tuple(w.chunk(ranks, 1)[rank] for w in matrices)
            if _close(found, wanted):
                continue
            if ranks != 4:
                yield Named("fixed", **facts)
            if tuple(found.shape) != tuple(wanted.shape):
                yield Named("shape", found=tuple(found.shape), wanted=tuple(wanted.shape))
            if ranks > 1 and width % ranks == 0 and _close(found, _attention(x, own, heads)):
                yield Named("all_heads", **facts)
            if _close(found, _attention(x, own, 1)):
                yield Named("one_head", **facts)
            yield Named("other", by=_difference(found, wanted), **facts)


@judge("15.finish", a_function("finish"))
def _finish(finish: Callable[..., Any]) -> Hints:
    for ranks in (2, 4):
        width, rows = _ANEW.randint(3, 8), ranks * _ANEW.randint(2, 3)
        x, slope = torch.randn(rows, width), torch.randn(rows, width)

        def work(x: Tensor, slope: Tensor) -> tuple[list[Tensor], list[Tensor | None]]:
            norm = nn.LayerNorm(x.shape[1]).cuda()
            (norm(x) * slope).sum().backward()
            finish(list(norm.parameters()))
            return list(norm.parameters()), [parameter.grad for parameter in norm.parameters()]

        pieces = list(zip(x.chunk(ranks), slope.chunk(ranks), strict=True))
        ran = on_ranks(work, ranks, pieces)
        if ran.failure and ran.failure.hangs:
            yield Named("alone")
        ran.require_success()
        right, own = _norm_gradients(x, slope), [_norm_gradients(*piece) for piece in pieces]
        gradients = [found for _, found in ran.results]
        if any(one is None for found in gradients for one in found):
            yield Named("gone")
        for rank, (parameters, _) in enumerate(ran.results):
            if not all(map(torch.equal, parameters, nn.LayerNorm(width).parameters())):
                yield Named("weights", rank=rank)
        good = [all(map(_close, found, right)) for found in gradients]
        for rank, found in enumerate(gradients):
            if good[rank]:
                continue
            if any(good):
                yield Named("rank_0", rank=rank, right=good.index(True))
            if all(map(_close, found, own[rank])):
                yield Named("own", rank=rank)
            if all(map(_close, found, [one / ranks for one in right])):
                yield Named("mean")
            if all(map(_close, found, [ranks * one for one in own[rank]])):
                yield Named("scaled", rank=rank)
            if _close(found[0], right[0]):
                yield Named("some")
            yield Named("other", ranks=ranks, by=max(map(_difference, found, right)))


def _norm_gradients(x: Tensor, slope: Tensor) -> list[Tensor]:
    norm = nn.LayerNorm(x.shape[1])
    (norm(x) * slope).sum().backward()
    return [parameter.grad for parameter in norm.parameters() if parameter.grad is not None]
