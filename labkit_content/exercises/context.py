"""Exercises of lesson 21: merge two blocks of attention, the ring, zig-zag shards, whose gradients are summed."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel as DDP

from labkit.base.texts import Text
from labkit_course.exercise import derive_facts, judge
from labkit_course.judging import Hints, Named, Unreadable
from labkit_course.kinds import a_function, read_returned, wrong_return
from labkit_ranks.plans.context import owners

from .on_ranks import on_ranks, on_ranks_with_late_messages

_ANEW = Random()
Attention = tuple[Tensor, Tensor]


@derive_facts(
    "21.targets",
    ranks=(4, 4, 8),
    tokens=(64, 16, 256),
    fresh=lambda random: {"ranks": random.choice((4, 8)), "tokens": 16 * random.randrange(2, 17)},
)
def _targets(ranks: int, tokens: int) -> dict[str, int]:
    return {"missing": ranks - 1, "each": tokens // ranks, "there": tokens - 1}


def _block(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Attention:
    """Return output and log-sum-exp of attention where ``mask`` is True; 0 and -inf for a row without keys."""
    scores = (q @ k.T / q.shape[1] ** 0.5).masked_fill(~mask, float("-inf"))
    lse = scores.logsumexp(1)
    return (scores - lse.clamp(min=-1e30)[:, None]).exp() @ v, lse


def _merge(o1: Tensor, l1: Tensor, o2: Tensor, l2: Tensor) -> Attention:
    lse = torch.logaddexp(l1, l2)
    w1, w2 = ((own - lse.clamp(min=-1e30)).exp()[:, None] for own in (l1, l2))
    return w1 * o1 + w2 * o2, lse


def _is_close(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.allclose(one, other, rtol=1e-3, atol=1e-4)


def _read_pair(found: Any) -> Attention:
    found = read_returned(found)
    if (
        not isinstance(found, (tuple, list))
        or len(found) != 2
        or not all(isinstance(x, Tensor) for x in found)
    ):
        raise Unreadable(Text(en="return two tensors: output and lse", zh="要返回两个张量：输出和 lse"))
    return found[0], found[1]


@judge("21.merge", a_function("merge"))
def _merging(merge: Callable[..., Any]) -> Hints:
    rows, keys, width = 5, 8, 4
    for case in ("usual", "large", "empty"):
        q, k, v = torch.randn(rows, width), torch.randn(keys, width), torch.randn(keys, width)
        if case == "large":  # scores of about 200
            q, k = q.abs() * 20 + 10, k.abs() * 2 + 5
        mask = torch.ones(rows, keys, dtype=torch.bool)
        if case == "empty":  # rows without keys in the second block, in the first, and in both
            mask[1, 3:] = mask[2, :3] = mask[3] = False
        one, other = (_block(q, k[part], v[part], mask[:, part]) for part in (slice(3), slice(3, None)))
        right, found = _block(q, k, v, mask), _read_pair(merge(*one, *other))
        if _is_close(found[0], right[0]) and _is_close(found[1], right[1]):
            continue
        if not found[0].isfinite().all():
            yield Named("overflow" if case == "large" else "empty" if case == "empty" else "not_finite")
        if _is_close(found[0], (one[0] + other[0]) / 2):
            yield Named("average")
        if _is_close(found[0], _merge(one[0], other[1], other[0], one[1])[0]):
            yield Named("swapped")
        if _is_close(found[0], right[0]):
            yield Named("lse")
        if _is_close(found[0], one[0] + other[0]):
            yield Named("added")
        yield Named("other", by=float((found[0] - right[0]).abs().max()))


# The ring.


def _visible(rank: int, source: int, rows: int = 4) -> Tensor:
    """Return which keys of ``source`` come no later than which queries of ``rank``."""
    at = torch.arange(rows)
    return (rank * rows + at)[:, None] >= source * rows + at


def _by_parts(
    q: Tensor, k: Tensor, v: Tensor, ranks: int, mask: Callable[[int, int], Tensor]
) -> list[Tensor]:
    """Return each rank's output when its queries see the keys of ``source`` where ``mask(rank, source)`` says so."""
    parts = [[each.chunk(ranks)[rank] for each in (q, k, v)] for rank in range(ranks)]
    found = []
    for rank in range(ranks):
        keys, values = (torch.cat([part[at] for part in parts]) for at in (1, 2))
        seen = torch.cat([mask(rank, source) for source in range(ranks)], 1)
        found.append(_block(parts[rank][0], keys, values, seen)[0])
    return found


def _with_own_values(q: Tensor, k: Tensor, v: Tensor, ranks: int) -> list[Tensor]:
    """Return each rank's output when the keys travel, and its own values take the place of all others."""
    return [
        _by_parts(q, k, part.repeat(ranks, 1), ranks, _visible)[rank]
        for rank, part in enumerate(v.chunk(ranks))
    ]


@judge("21.ring", a_function("ring_attention"))
def _ring(ring_attention: Callable[..., Any]) -> Hints:
    rows, width = 4, 8
    for ranks in (4, 3, 1):
        q, k, v = (torch.randn(ranks * rows, width) for _ in range(3))
        given = [tuple(each.chunk(ranks)[rank] for each in (q, k, v)) for rank in range(ranks)]
        # Received tensors hold NaN until wait(): a result with NaN, but none with zeros there, was computed too early.
        ran = on_ranks_with_late_messages(ring_attention, ranks, given)
        if ran.failure and ran.failure.hangs:
            arrived = any(event.name == "recv" and event.phase == "collective" for event in ran.events)
            yield Named("stops" if arrived else "hangs", ranks=ranks)
        if ran.failure and "invalid argument" in ran.failure.words:
            yield Named("peers", ranks=ranks)
        found = [read_returned(one) for one in ran.require_success().results]
        if not all(isinstance(one, Tensor) for one in found):
            raise wrong_return(found[0], Text("the output alone", "输出这一个张量"))
        if any(one.isnan().any() for one in found):
            with_zeros = on_ranks_with_late_messages(ring_attention, ranks, given, 0.0).results
            if not any(one.isnan().any() for one in with_zeros):
                yield Named("early", ranks=ranks)
        if ran.call_kinds("all_gather", "all_gather_single", "all_gather_object"):
            yield Named("gathered", ranks=ranks)
        right = _by_parts(q, k, v, ranks, _visible)
        # What each mistake would let a rank's queries see.
        masks: dict[str, Callable[[int, int], Tensor]] = {
            "own": lambda rank, source: _visible(0, 0) & (rank == source),
            "local_mask": lambda rank, source: _visible(0, 0),
            "not_causal": lambda rank, source: _visible(1, 0),
            "later": lambda rank, source: _visible(0, 0) if rank == source else _visible(1, 0),
            "turned": lambda rank, source, ranks=ranks: _visible(rank, (2 * rank - source) % ranks),  # type: ignore[misc]
        }
        if all(map(_is_close, found, right)):
            sent, enough = max(map(ran.count_sent_bytes, range(ranks))), (ranks - 1) * 2 * 4 * rows * width
            if sent > enough:
                yield Named("hops", ranks=ranks, sent=sent / (enough or 1) * (ranks - 1), enough=ranks - 1)
            continue
        for name, mask in masks.items():
            if all(map(_is_close, found, _by_parts(q, k, v, ranks, mask))):
                yield Named(name, ranks=ranks)
        if len(ran.call_kinds("send")) and all(map(_is_close, found, _with_own_values(q, k, v, ranks))):
            yield Named("keys_alone", ranks=ranks)
        good = list(map(_is_close, found, right))
        if good == [True] * (ranks - 1) + [False]:
            yield Named("too_few", ranks=ranks)
        yield Named("other", ranks=ranks, rank=good.index(False))


# Shards of a batch.


@judge("21.shard", a_function("shard"))
def _shard(shard: Callable[..., Any]) -> Hints:
    for ranks, chunk in ((4, 3), (2, 2), (3, 4)):
        length = 2 * ranks * chunk
        ids = torch.randint(1, 1000, (2, length))
        labels = torch.cat([ids[:, 1:], torch.full((2, 1), -100)], 1)
        places = [torch.tensor([at for at, own in enumerate(owners(length, ranks, "zig-zag")) if own == rank])
                  for rank in range(ranks)]  # fmt: skip
        for rank, place in enumerate(places):
            found = read_returned(shard(given := ids.clone(), rank, ranks))
            if not isinstance(found, (tuple, list)) or len(found) != 3:
                raise Unreadable(
                    Text(en="return ids, labels and positions", zh="要返回 ids、labels、positions 三样")
                )
            own, targets, positions = map(torch.as_tensor, found)
            facts = {"rank": rank, "ranks": ranks, "last": int(place[-1])}
            if not torch.equal(own, ids[:, place]):
                near = ids.chunk(ranks, 1)[rank]
                yield Named("contiguous" if torch.equal(own, near) else "ids", **facts)
            if not torch.equal(targets, labels[:, place]):
                late = torch.cat([ids[:, place[1:]], torch.full((2, 1), -100)], 1)
                halves = [
                    torch.cat([half[:, 1:], torch.full((2, 1), -100)], 1)
                    for half in ids[:, place].chunk(2, 1)
                ]
                if torch.equal(targets, late) or torch.equal(targets, torch.cat(halves, 1)):
                    yield Named("shifted_after", **facts)
                if torch.equal(targets, ids[:, place]):
                    yield Named("unshifted")
                if torch.equal(targets, ids.roll(-1, 1)[:, place]):
                    yield Named("rolled")
                apart = targets.shape == own.shape and torch.equal(targets, labels.chunk(ranks, 1)[rank])
                yield Named("split_apart" if apart else "labels", **facts)
            if positions.shape[-1:] != place.shape or not (positions == place).all():
                counted = positions.shape[-1:] == place.shape and bool(
                    (positions == torch.arange(len(place))).all()
                )
                yield Named("from_0" if counted else "positions", **facts)
            if not torch.equal(given, ids):
                yield Named("changed")


# Whose gradients are summed.


@judge("21.wrap", a_function("wrap"))
def _wrap(wrap: Callable[..., Any]) -> Hints:
    # Rows are split over ``data`` ranks, each row's tokens over ``context`` ranks.
    for data, context in ((1, 2), (2, 2)):
        ranks, seed, nested = data * context, _ANEW.randrange(1000), list[bool]()
        x = torch.randn(2 * data, 4 * context, 3)
        pieces = [part for rows in x.chunk(data) for part in rows.chunk(context, 1)]

        def work(own: Tensor, data: int = data, context: int = context, seed: int = seed,
                 nested: list[bool] = nested) -> list[Any]:  # fmt: skip
            rank = dist.get_rank()
            along = [[dist.new_group([d * context + c for d in range(data)]) for c in range(context)],
                     [dist.new_group([d * context + c for c in range(context)]) for d in range(data)]]  # fmt: skip
            torch.manual_seed(seed)
            model = nn.Linear(3, 2).cuda()
            made = read_returned(wrap(model, along[0][rank % context], along[1][rank // context]))
            made(own).square().mean().backward()
            grads: list[Any] = [weight.grad for weight in model.parameters()]
            nested.append(isinstance(made, DDP) and isinstance(made.module, DDP))
            return [one.full_tensor() if hasattr(one, "full_tensor") else one for one in grads]  # of FSDP2

        ran = on_ranks(work, ranks, [(own,) for own in pieces]).require_success()

        def gradients(*parts: Tensor, seed: int = seed) -> Tensor:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                model = nn.Linear(3, 2)
            sum(model(part).square().mean() / len(parts) for part in parts).backward()
            return torch.cat(
                [weight.grad.flatten() for weight in model.parameters() if weight.grad is not None]
            )

        found = [torch.cat([one.flatten() for one in grads]) for grads in ran.results]
        right, facts = gradients(*pieces), {"ranks": ranks, "data": data, "context": context}
        if all(_is_close(one, right) for one in found):
            continue
        if any(nested):
            yield Named("nested", **facts)
        own = [gradients(piece) for piece in pieces]
        if all(map(_is_close, found, own)):
            yield Named("alone", **facts)
        if all(_is_close(one, right * context) for one in found):
            yield Named("times", factor=context, **facts)
        if all(_is_close(one, right / context) for one in found):
            yield Named("divided", factor=context, **facts)
        by_data = [gradients(*pieces[rank % context :: context]) for rank in range(ranks)]
        by_context = [gradients(*pieces[rank // context * context :][:context]) for rank in range(ranks)]
        for name, wanted in (("data_only", by_data), ("context_only", by_context)):
            if all(map(_is_close, found, wanted)):
                yield Named(name, **facts)
        yield Named("other", **facts)
