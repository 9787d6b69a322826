"""Exercises of lesson 20: which blocks to recompute, the norm of shards beside whole weights, and loss scaling."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from math import isclose
from random import Random
from traceback import walk_stack
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint, noop_context_fn

from labkit_course.exercise import derive_facts, judge
from labkit_course.judging import Hints, Named
from labkit_course.kinds import A_NUMBER, a_function, read_returned
from labkit_ranks.plans.recompute import staircase

from .on_ranks import on_ranks

_ANEW = Random()
_MIB = 2**20


@derive_facts("20.every", layers=(36, 9, 196), fresh=lambda random: {"layers": random.randrange(3, 15) ** 2})
def _recompute_period(layers: int) -> dict[str, object]:
    root = round(layers**0.5)
    peaks = {every: staircase(layers, 1, every).peak for every in range(1, layers + 1)}
    lowest = [str(every) for every, peak in peaks.items() if peak == min(peaks.values())]
    return {"root": root, "peak": peaks[root], "lowest": " or ".join(lowest), "tied": ", ".join(lowest)}


# Which blocks to recompute.


def _checkpoint_frames() -> Iterator[FrameType]:
    """Yield the frames of torch's checkpoint that the caller runs in."""
    for frame, _ in walk_stack(None):
        if frame.f_code.co_filename.replace("\\", "/").endswith("torch/utils/checkpoint.py"):
            yield frame


class _Block(nn.Module):
    """The lesson's block; ``calls`` counts how often its forward ran, recomputation included.

    ``selective`` is whether a checkpoint with a ``context_fn`` keeps a part of its activations.
    """

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.calls, self.selective = 0, False
        self.norm, self.qkv, self.out = (
            nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        )  # fmt: skip
        up, down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.mlp = nn.Sequential(nn.LayerNorm(width), up, nn.GELU(), down, nn.Dropout(0.1))
        parts: tuple[Any, ...] = (self.norm, self.qkv, self.out, *self.mlp)
        for part in parts:
            part.calls = 0
            part.register_forward_pre_hook(_count_call)

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        contexts = [frame.f_locals.get("context_fn", noop_context_fn) for frame in _checkpoint_frames()]
        self.selective |= any(one is not noop_context_fn for one in contexts)
        heads = self.qkv(self.norm(x)).unflatten(2, (3, 4, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(nn.functional.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2))
        mixed: Tensor = x + self.mlp(x)
        return mixed


def _count_call(part: Any, _: object) -> None:
    part.calls += 1


class _Embedding(nn.Embedding):
    """A frozen embedding; ``calls`` is 2 if it ran inside a checkpoint (nothing in it needs to be recomputed)."""

    calls = 1

    def forward(self, tokens: Tensor) -> Tensor:
        self.calls = 1 + any(True for _ in _checkpoint_frames())
        return super().forward(tokens)


def _step(change: Callable[[nn.Sequential], Any], blocks: int) -> Any:
    """Return what a step of a changed model shows: peak, loss, gradients, how often each module ran, whether a
    checkpoint keeps a part of a block's activations, and how many blocks are recomputed in part only.
    """
    torch.manual_seed(blocks)
    embedding = _Embedding(256, 64).requires_grad_(False)
    model: Any = nn.Sequential(embedding, *(_Block() for _ in range(blocks))).cuda()
    modules, parameters = list(model), [weight for weight in model.parameters() if weight.requires_grad]
    made = change(model)
    if isinstance(made, nn.Module):
        model = made
    for weight in parameters:
        weight.grad = None
    for module in (part for block in modules for part in block.modules()):
        module.calls = 0
    del made
    tokens = torch.arange(512).view(4, 128).cuda() % 256
    torch.manual_seed(7)
    torch.cuda.reset_peak_memory_stats()
    loss = model(tokens).square().mean()
    loss.backward()
    peak = torch.cuda.max_memory_allocated()
    calls, selective = [module.calls for module in modules], any(block.selective for block in modules[1:])
    partly = sum(
        block.calls == 1 and any(part.calls > 1 for part in block.modules()) for block in modules[1:]
    )
    return peak, loss.item(), [weight.grad for weight in parameters], calls, selective, partly


def _wrap_first(count: int, model: nn.Sequential) -> None:
    for block in list(model)[1 : 1 + count]:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)


@cache
def _run_step_with(count: int, blocks: int) -> Any:
    """Return a step in which the first ``count`` blocks are recomputed; it is the same in every try."""
    return on_ranks(_step, 1, [(partial(_wrap_first, count), blocks)]).require_success().results[0]


@judge("20.recompute", a_function("recompute"))
def _recompute(recompute: Callable[..., Any]) -> Hints:
    blocks = 8
    for fewest in (3, _ANEW.choice((2, 4, 5)), 0):
        plain, before, enough = (_run_step_with(count, blocks) for count in (0, max(fewest - 1, 0), fewest))
        room = (before[0] + enough[0]) // 2 if fewest else plain[0] + _MIB

        def change(model: nn.Sequential, room: int = room) -> Any:
            return recompute(model, room)

        ran = on_ranks(_step, 1, [(change, blocks)])
        if ran.failure and "does not require grad" in ran.failure.words:
            yield Named("no_gradient", missing="the whole model")
        peak, loss, gradients, calls, selective, partly = ran.require_success().results[0]
        yield from _not_the_gradients(plain, loss, gradients, calls)
        again = [at for at, count in enumerate(calls) if at and count > 1]
        facts = {"peak": peak / _MIB, "room": room / _MIB, "count": len(again), "fewest": fewest}
        if len(again) == blocks and peak > 0.9 * plain[0]:
            yield Named("one_unit", **facts)
        if calls[0] > 1:
            yield Named("embedding")
        if selective and (peak > room or len(again) > fewest > 0):
            yield Named("part", **facts)
        if partly and (peak > room or len(again) + partly > fewest):
            yield Named("part", **facts | {"count": len(again) + partly})
        late = again and again[0] > 1
        if peak > room:
            yield Named("last" if late else "over" if again else "nothing", **facts)
        if len(again) > fewest:
            yield Named("last_many" if late and fewest else "many" if fewest else "none_needed", **facts)


def _not_the_gradients(
    plain: Any, loss: float, gradients: Sequence[Tensor | None], calls: list[int]
) -> Hints:
    """Yield hints on gradients that recomputation must not change."""
    each = len(gradients) // (len(calls) - 1)
    missing = [at // each for at, gradient in enumerate(gradients) if gradient is None]
    if missing:
        yield Named("no_gradient", missing=f"model[{missing[0] + 1}]")
    pairs = [(one, other) for one, other in zip(gradients, plain[2], strict=True) if one is not None]
    if all(torch.allclose(one, other, rtol=1e-3, atol=1e-7) for one, other in pairs):
        return
    yield Named("masks" if isclose(loss, plain[1], rel_tol=1e-6) else "other_model")


# The norm of the gradients.


def _own_part(gradient: Any) -> Tensor:
    """Return what this rank holds of a gradient."""
    part: Tensor = gradient.to_local() if hasattr(gradient, "to_local") else gradient
    return part


@judge("20.norm", a_function("norm"))
def _norm(norm: Callable[..., Any]) -> Hints:
    for ranks in (2, 3):
        seed, rows = _ANEW.randrange(1000), torch.randn(ranks, 4, 6)

        def work(own: Tensor, seed: int = seed) -> tuple[Any, list[list[float]], bool]:
            torch.manual_seed(seed)
            body, head = nn.Sequential(nn.Linear(6, 7), nn.Linear(7, 5)), nn.Linear(5, 3)
            model: Any = nn.Sequential(body, head).cuda()
            for layer in model[0]:
                fully_shard(layer)
            (3 * model(own)).square().mean().backward()
            for weight in model[1].parameters():
                dist.all_reduce(weight.grad, op=dist.ReduceOp.AVG)
            squares = [
                [float(_own_part(one).square().sum()) for one in part]
                for part in ([weight.grad for weight in half.parameters()] for half in model)
            ]
            before = [_own_part(weight.grad).clone() for weight in model.parameters()]
            found = norm(model)
            changed = not all(map(torch.equal, before, (_own_part(w.grad) for w in model.parameters())))
            return found.full_tensor() if hasattr(found, "full_tensor") else found, squares, changed

        ran = on_ranks(work, ranks, [(own,) for own in rows])
        if ran.failure and "mixed torch.Tensor and DTensor" in ran.failure.words:
            yield Named("mixed", error="mixed torch.Tensor and DTensor")
        ran.require_success()
        found = [read_returned(one, A_NUMBER, en="`norm`", zh="`norm` ") for one, *_ in ran.results]
        yield from _wrong_norm(found, [squares for _, squares, _ in ran.results])
        if any(changed for *_, changed in ran.results):
            yield Named("changed")


def _wrong_norm(found: list[float], squares: list[list[list[float]]]) -> Hints:
    """Yield hints on the ranks' norms; ``squares``: of each rank, of its shards and of the whole weights."""
    ranks, shards = len(found), [sum(body) for body, _ in squares]
    whole, every = sum(squares[0][1]), sum(shards)
    right, facts = (every + whole) ** 0.5, {"ranks": ranks, "found": found[0]}

    def gap(*values: float) -> float:
        """Return the largest relative difference between the ranks' norms and ``values``, each rank's in turn."""
        pairs = zip(found, values * (ranks // len(values)), strict=True)
        return max(abs(one - other) / max(abs(other), 1e-12) for one, other in pairs)

    if gap(right) <= 1e-4:
        return
    locals_ = [(own + whole) ** 0.5 for own in shards]
    by_tensor = sum(sum(each) ** 0.5 for each in zip(*(body for body, _ in squares), strict=True))
    mistakes = [
        ("no_root", right**2), ("forgotten", every**0.5), ("whole_often", (every + ranks * whole) ** 0.5),
        ("averaged", ((every + ranks * whole) / ranks) ** 0.5), ("averaged", (every / ranks + whole) ** 0.5),
        ("sum_of_norms", every**0.5 + whole**0.5), ("sum_of_norms", sum(locals_)),
        ("sum_of_norms", sum(own**0.5 for own in shards) + whole**0.5), ("sum_of_norms", sum(locals_) / ranks),
        ("sum_of_norms", (sum(own**0.5 for own in shards) ** 2 + whole) ** 0.5),
        ("sum_of_norms", by_tensor + sum(one**0.5 for one in squares[0][1])),
        ("sum_of_norms", sum(one**0.5 for own in squares for part in own for one in part)),
    ]  # fmt: skip
    gaps = [(gap(value), name) for name, value in mistakes]
    gaps += [(gap(*locals_), "own_shard"), (gap(*(own**0.5 for own in shards)), "forgotten")]
    least, name = min(gaps)  # shards may happen to be so alike that two mistakes give nearly the same
    if least <= 1e-4:
        yield Named(name, **facts, **({"one": found[0], "other": found[1]} if name == "own_shard" else {}))
    yield Named("other", right=right, **facts)


# Loss scaling.

_RATE = 0.1


def _scaled_step(
    loss: Tensor, model: nn.Module, optimizer: Any, scale: float,
    *, order: str = "scale backward unscale flag clip step",
) -> float:  # fmt: skip
    """Take a step in which ``order`` may be wrong, and return the new scale."""
    weights, bad = list(model.parameters()), False
    for doing in order.split():
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        if doing == "scale":
            loss = loss * scale
        elif doing == "backward":
            loss.backward()
        elif doing == "unscale":
            for gradient in gradients:
                gradient /= scale
        elif doing == "flag":
            flag = torch.stack([~gradient.isfinite().all() for gradient in gradients]).any().float()
            dist.all_reduce(flag, op=dist.ReduceOp.MAX)
            bad = bool(flag)
        elif doing == "clip" and not bad:
            squares = torch.stack([gradient.square().sum() for gradient in gradients]).sum()
            dist.all_reduce(squares)
            for gradient in gradients:
                gradient *= min(1.0, 1 / float(squares) ** 0.5)
        elif doing == "step" and not bad:
            optimizer.step()
    return scale / 2 if bad else scale


# Wrong orders, by the hint that each gets; with a gradient below 1, above 1, or either.
_ORDERS = {
    "clip_first": "scale backward clip unscale step", "not_unscaled": "scale backward flag clip step",
    "unclipped": "scale backward unscale flag step", "twice": "scale backward unscale unscale flag clip step",
}  # fmt: skip


@judge("20.step", a_function("step"))
def _scaling(step: Callable[..., Any]) -> Hints:
    for ranks, first in ((2, 2.0**8), (3, 2.0**9)):
        # Three gradients: no clipping, clipping, and an overflow on the last rank alone.
        for size, over in ((0.1, False), (3.0, False), (0.1, True)):
            seed = _ANEW.randrange(1000)

            def work(
                taken: Callable[..., Any],
                size: float = size,
                over: bool = over,
                seed: int = seed,
                first: float = first,
            ) -> Any:
                rank = dist.get_rank()
                torch.manual_seed(seed + rank)
                model: Any = nn.Linear(4, 3, bias=False).cuda()
                x = torch.randn(8, 4).cuda() * (1000 if over and rank == dist.get_world_size() - 1 else size)
                with torch.autocast("cuda", dtype=torch.float16):
                    output = model(x)
                loss = output.float().square().sum(1).mean()
                before = model.weight.detach().clone()
                scale = taken(loss, model, torch.optim.SGD(model.parameters(), lr=_RATE), first)
                return scale, model.weight.detach() - before

            ran = on_ranks(work, ranks, [(step,)] * ranks)
            if over and ran.failure and ran.failure.hangs:
                yield Named("apart", words=ran.failure.words.rstrip(".。"))
            found = ran.require_success().results
            scales = [read_returned(scale, A_NUMBER, en="`step`", zh="`step` ") for scale, _ in found]
            moved = [change for _, change in found]
            if over:
                yield from _wrong_after_overflow(scales, moved, first)
                continue
            others = {name: _moves(work, ranks, order) for name, order in _ORDERS.items()}
            right = _moves(work, ranks, "scale backward unscale flag clip step")
            yield from _wrong_moves(moved, right, others, first)
            if scales != [first] * ranks:
                yield Named("moved_scale", found=scales[0], scale=first)


def _moves(work: Callable[..., Any], ranks: int, order: str) -> list[Tensor]:
    ran = on_ranks(work, ranks, [(partial(_scaled_step, order=order),)] * ranks)
    return [change for _, change in ran.require_success().results]


def _wrong_moves(
    moved: list[Tensor], right: list[Tensor], others: dict[str, list[Tensor]], scale: float
) -> Hints:
    """Yield hints on a step without overflow."""

    def are(changes: list[Tensor]) -> bool:
        return all(
            torch.allclose(one, other, rtol=1e-2, atol=1e-2 * float(other.abs().max()))
            for one, other in zip(moved, changes, strict=True)
        )

    if are(right):
        return
    if not any(change.any() for change in moved):
        yield Named("still")
    for name, changes in others.items():
        if are(changes):
            yield Named(name, scale=scale)
    yield Named("other", by=max(float((a - b).abs().max()) for a, b in zip(moved, right, strict=True)))


def _wrong_after_overflow(scales: list[float], moved: list[Tensor], scale: float) -> Hints:
    """Yield hints on a step in which only the last rank's gradient has overflowed."""
    stepped = [bool(change.any() or not change.isfinite().all()) for change in moved]
    last = len(moved) - 1
    if not all(change.isfinite().all() for change in moved):
        yield Named(
            "not_finite", rank=next(r for r, change in enumerate(moved) if not change.isfinite().all())
        )
    if any(stepped):
        yield Named("apart_step", rank=stepped.index(True), last=last)
    if len(set(scales)) > 1:
        yield Named("apart_scale", one=scales[0], other=scales[last], last=last)
    if not 0 < scales[0] < scale:
        yield Named("no_update", found=scales[0], scale=scale)
