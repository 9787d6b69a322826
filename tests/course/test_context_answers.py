"""The exercises of lesson 21: right answers, also in other shapes, and the hint that each misconception gets."""

import re
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP

from labkit import ContextExplorer
from labkit_course.answers import check
from labkit_course.content import module
from labkit_course.exercise import find
from labkit_ranks.plans.context import HEADS, KV_HEADS, LAYOUTS, ContextRing, sent

on_ranks = module("exercises.on_ranks").on_ranks
context = module("exercises.context")
block, merge = context._block, context._merge
LOW = -1e30


def hinted(id, answer):
    hint = find(id).hint(answer)
    return hint and hint.id


def by_sigmoid(o1, l1, o2, l2):
    share = torch.sigmoid(torch.nan_to_num(l2 - l1, nan=0.0))[:, None]
    return o1 + share * (o2 - o1), torch.logaddexp(l1, l2)


def by_maximum(o1, l1, o2, l2):
    top = torch.maximum(l1, l2).clamp(min=LOW)
    w1, w2 = (l1 - top).exp()[:, None], (l2 - top).exp()[:, None]
    total = w1 + w2
    return (w1 * o1 + w2 * o2) / total.clamp(min=1e-30), total[:, 0].log() + top.where(total[:, 0] > 0, 0)


def naive(o1, l1, o2, l2, turned=False):
    w1, w2 = l1.exp()[:, None], l2.exp()[:, None]
    if turned:
        w1, w2 = w2, w1
    return (w1 * o1 + w2 * o2) / (w1 + w2), (l1.exp() + l2.exp()).log()


def by_softmax(o1, l1, o2, l2, low=float("-inf")):
    both = torch.stack([l1, l2])
    own, other = both.clamp(min=low).softmax(0)[..., None]
    return own * o1 + other * o2, both.logsumexp(0)


@pytest.mark.parametrize(("answer", "hint"), [
    (merge, None), (by_sigmoid, None), (by_maximum, None), (partial(by_softmax, low=LOW), None), (by_softmax, "empty"),
    (lambda *given: (merge(*given)[0], merge(*given)[1][:, None]), "lse"),
    (lambda o1, l1, o2, l2: ((o1 + o2) / 2, torch.logaddexp(l1, l2)), "average"),
    (lambda o1, l1, o2, l2: (o1 + o2, torch.logaddexp(l1, l2)), "added"), (partial(naive, turned=True), "swapped"),
    (naive, "overflow"), (lambda o1, l1, o2, l2: (o1 / 0, l1), "not_finite"),
    (lambda o1, l1, o2, l2: (o1, l1), "other"),
])  # fmt: skip
def test_two_blocks_are_merged(answer, hint):
    assert hinted("21.merge", answer) == hint


def ring(q, k, v, *, way=1, counted=1, hops=0, mask="whole", blocking=False, same_buffer=False, waits=True,
         stops=False, steps=0, keys_alone=False):  # fmt: skip
    rank, ranks = dist.get_rank(), dist.get_world_size()
    rows = torch.arange(len(q), device=q.device)
    out, lse = torch.zeros_like(q), torch.full_like(q[:, 0], float("-inf"))
    for step in range(ranks + steps):
        if stops and step > rank:  # nothing to compute
            break
        source, works = (rank - counted * step) % ranks, []
        fresh = [k, v] if same_buffer else [torch.empty_like(k), torch.empty_like(v)]
        if step < ranks - 1 + hops and ranks > 1:
            to, source_rank = (rank + way) % ranks, (rank - way) % ranks
            if blocking:
                for one, other in zip((k, v), fresh, strict=True):
                    dist.send(one, to)
                    dist.recv(other, source_rank)
            else:
                sends = [dist.P2POp(dist.isend, x, to) for x in (k, v)]
                works = dist.batch_isend_irecv(
                    sends + [dist.P2POp(dist.irecv, x, source_rank) for x in fresh]
                )
        whole = mask == "whole" or (mask == "own" and rank == source)
        own, other = (rank * len(q), source * len(q)) if whole else (0, 0)
        seen = (own + rows)[:, None] >= other + rows
        out, lse = merge(out, lse, *block(q, k, v, seen | (mask == "none" or not whole and mask == "own")))
        for work in works if waits else ():
            work.wait()
        k, v = (fresh[0], v) if keys_alone else fresh
    return out


def by_batch(q, k, v):
    """Keys and values in one tensor, by batch_isend_irecv, the other way round; blocks without a key are skipped."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    pair, out, lse = torch.stack([k, v]), None, None
    rows = torch.arange(len(q), device=q.device)
    for step in range(ranks):
        source = (rank + step) % ranks
        if source <= rank:
            seen = (rank * len(q) + rows)[:, None] >= source * len(q) + rows
            one = block(q, *pair, seen)
            out, lse = one if out is None else merge(out, lse, *one)
        if step < ranks - 1:
            fresh = torch.empty_like(pair)
            operations = [dist.P2POp(dist.isend, pair, (rank - 1) % ranks),
                          dist.P2POp(dist.irecv, fresh, (rank + 1) % ranks)]  # fmt: skip
            for work in dist.batch_isend_irecv(operations):
                work.wait()
            pair = fresh
    return out


def gathered(q, k, v):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    keys, values = ([torch.empty_like(k) for _ in range(ranks)] for _ in range(2))
    dist.all_gather(keys, k)
    dist.all_gather(values, v)
    at = torch.arange(ranks * len(q), device=q.device)
    return block(q, torch.cat(keys), torch.cat(values), at[rank * len(q) :][: len(q), None] >= at)[0]


def own(q, k, v):
    rows = torch.arange(len(q), device=q.device)
    return block(q, k, v, rows[:, None] >= rows)[0]


def by_parity(q, k, v):
    """Blocking calls: every other rank receives first, and the last of an odd number after rank 0 has sent."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    rows, pair, found = torch.arange(len(q), device=q.device), torch.stack([k, v]), None
    for step in range(ranks):
        source = (rank - step) % ranks
        one = block(q, *pair, (rank * len(q) + rows)[:, None] >= source * len(q) + rows)
        found = one if found is None else merge(*found, *one)
        fresh = torch.empty_like(pair)
        calls = [lambda: dist.send(pair, (rank + 1) % ranks), lambda: dist.recv(fresh, (rank - 1) % ranks)]  # noqa: B023
        if step < ranks - 1:
            for call in calls if rank % 2 == 0 else reversed(calls):
                call()
            pair = fresh
    return found[0]


def of_four(q, k, v):
    """The number of ranks is written down."""
    rank, rows, found = dist.get_rank(), torch.arange(len(q), device=q.device), None
    for step in range(4):
        source = (rank - step) % 4
        one = block(q, k, v, (rank * len(q) + rows)[:, None] >= source * len(q) + rows)
        found = one if found is None else merge(*found, *one)
        if step < 3:
            fresh = [torch.empty_like(k), torch.empty_like(v)]
            calls = [dist.P2POp(dist.isend, x, (rank + 1) % 4) for x in (k, v)]
            calls += [dist.P2POp(dist.irecv, x, (rank - 1) % 4) for x in fresh]
            for work in dist.batch_isend_irecv(calls):
                work.wait()
            k, v = fresh
    return found[0]


def by_broadcast(q, k, v):
    """Each rank in turn gives its pair to all; so no rank keeps more than two pairs."""
    rank, rows, found = dist.get_rank(), torch.arange(len(q), device=q.device), None
    for source in range(dist.get_world_size()):
        pair = torch.stack([k, v]) if source == rank else torch.empty(2, *k.shape, device=k.device)
        dist.broadcast(pair, source)
        one = block(q, *pair, (rank * len(q) + rows)[:, None] >= source * len(q) + rows)
        found = one if found is None else merge(*found, *one)
    return found[0]


def into_the_sent(q, k, v):
    """From the second step on, receive into the tensors that are being sent."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    rows, fresh, found = torch.arange(len(q), device=q.device), [k.clone(), v.clone()], None
    for step in range(ranks):
        source = (rank - step) % ranks
        one = block(q, k, v, (rank * len(q) + rows)[:, None] >= source * len(q) + rows)
        found = one if found is None else merge(*found, *one)
        if step < ranks - 1:
            calls = [dist.P2POp(dist.isend, x, (rank + 1) % ranks) for x in (k, v)]
            calls += [dist.P2POp(dist.irecv, x, (rank - 1) % ranks) for x in fresh]
            for work in dist.batch_isend_irecv(calls):
                work.wait()
            k, v = fresh
    return found[0]


def late(q, k, v):
    """Rank 0 never sends."""
    return own(q, k, v) if dist.get_rank() == 0 else ring(q, k, v)


@pytest.mark.parametrize(("answer", "hint"), [
    (into_the_sent, "other"), (of_four, "peers"), (by_broadcast, None), (ring, None), (by_batch, None),
    (partial(ring, way=-1, counted=-1), None), (partial(ring, blocking=True), "hangs"), (by_parity, None),
    (partial(ring, mask="local"), "local_mask"), (partial(ring, mask="none"), "not_causal"),
    (partial(ring, mask="own"), "later"), (partial(ring, hops=1), "hops"), (partial(ring, way=-1), "turned"),
    (own, "own"), (gathered, "gathered"), (late, "stops"), (partial(ring, waits=False), "early"),
    (lambda q, k, v: ring(q, k, v) * float("nan"), "other"), (partial(ring, steps=-1), "too_few"),
    (partial(ring, keys_alone=True), "keys_alone"),
])  # fmt: skip
def test_attention_goes_around_the_ring(answer, hint):
    assert hinted("21.ring", answer) == hint


def test_the_ring_returns_the_output_alone():
    assert "the output alone" in check("21.ring", lambda q, k, v: (ring(q, k, v), q[:, 0])).text


def shard(ids, rank, ranks, labels=None, positions=None, cut=None):
    if labels is None:
        labels = torch.nn.functional.pad(ids[:, 1:], (0, 1), value=-100)
    cut = cut or (lambda x: zigzag(x, rank, ranks))
    return cut(ids), cut(labels), cut(torch.arange(ids.shape[1]).expand_as(ids))


def zigzag(x, rank, ranks):
    chunks = x.chunk(2 * ranks, -1)
    return torch.cat([chunks[rank], chunks[-1 - rank]], -1)


def by_index(ids, rank, ranks):
    """Places first, then one index for all; positions of one row."""
    half = ids.shape[1] // (2 * ranks)
    places = [
        *range(rank * half, (rank + 1) * half),
        *range(ids.shape[1] - (rank + 1) * half, ids.shape[1] - rank * half),
    ]
    following = torch.cat([ids, torch.full_like(ids[:, :1], -100)], 1)
    return ids[:, places], following[:, [at + 1 for at in places]], torch.tensor(places)


def shifted_after(ids, rank, ranks):
    own, _, positions = shard(ids, rank, ranks)
    return own, torch.nn.functional.pad(own[:, 1:], (0, 1), value=-100), positions


def from_0(ids, rank, ranks):
    own, labels, _ = shard(ids, rank, ranks)
    return own, labels, torch.arange(own.shape[1])


def apart(ids, rank, ranks):
    own, _, positions = shard(ids, rank, ranks)
    return own, torch.nn.functional.pad(ids[:, 1:], (0, 1), value=-100).chunk(ranks, 1)[rank], positions


def overwritten(ids, rank, ranks):
    """The labels take the place of the ids that were given."""
    own, _, positions = (each.clone() for each in shard(ids, rank, ranks))
    ids[:, :-1], ids[:, -1] = ids[:, 1:].clone(), -100
    return own, zigzag(ids, rank, ranks), positions


@pytest.mark.parametrize(("answer", "hint"), [
    (overwritten, "changed"), (shard, None), (by_index, None), (lambda *given: list(shard(*given)), None),
    (shifted_after, "shifted_after"), (from_0, "from_0"), (apart, "split_apart"),
    (lambda ids, rank, ranks: shard(ids, rank, ranks, labels=ids), "unshifted"),
    (lambda ids, rank, ranks: shard(ids, rank, ranks, cut=lambda x: x.chunk(ranks, 1)[rank]), "contiguous"),
    (lambda ids, rank, ranks: shard(ids, ranks - 1 - rank, ranks), "ids"),
    (lambda ids, rank, ranks: shard(ids, rank, ranks, labels=ids.roll(-1, 1)), "rolled"),
    (lambda ids, rank, ranks: shard(ids, rank, ranks, labels=ids.roll(-2, 1)), "labels"),
    (lambda *given: [*shard(*given)[:2], shard(*given)[2] + 1], "positions"),
])  # fmt: skip
def test_a_batch_is_cut_after_its_labels_are_shifted(answer, hint):
    assert hinted("21.shard", answer) == hint


def by_hooks(model, data, context, groups=2, divide=True):
    """Hooks that average over one group after the other."""
    for weight in model.parameters():
        for group in (data, context)[:groups]:

            def average(gradient, group=group):
                gradient = gradient.clone()
                dist.all_reduce(gradient, group=group)
                return gradient / (dist.get_world_size(group) if divide else 1)

            weight.register_hook(average)
    return model


def scaled(model, data, context, by):
    for weight in model.parameters():
        weight.register_hook(lambda gradient: gradient * by(dist.get_world_size(context)))
    return DDP(model)


@pytest.mark.parametrize(("answer", "hint"), [
    (lambda model, data, context: DDP(model), None), (by_hooks, None),
    (lambda model, data, context: by_hooks(DDP(model, process_group=data), context, None, groups=1), None),
    (lambda model, data, context: DDP(model, process_group=data), "alone"),
    (lambda model, data, context: fully_shard(model), None),
    (lambda model, data, context: DDP(model, process_group=data if dist.get_world_size() > 2 else None), "data_only"),
    (lambda model, data, context: DDP(model, process_group=context), "context_only"),
    (partial(scaled, by=lambda size: size), "times"), (partial(scaled, by=lambda size: 1 / size), "divided"),
    (partial(scaled, by=lambda size: 3), "other"),
    (lambda model, data, context: DDP(DDP(model, process_group=data), process_group=context), "nested"),
    (lambda model, data, context: DDP(DDP(model, process_group=context), process_group=data), "nested"),
    (lambda model, data, context: DDP(model, process_group=dist.group.WORLD), None),
])  # fmt: skip
def test_gradients_are_averaged_over_data_and_context(answer, hint):
    assert hinted("21.wrap", answer) == hint


def test_work_of_the_ring_by_layout():
    """Pairs on four ranks, as lesson 21 has them, and the formula for neighbouring tokens."""
    by_rank = {
        layout: [sum(own) for own in zip(*ContextRing(4, layout, 64).work(), strict=True)]
        for layout in LAYOUTS
    }
    assert by_rank["contiguous"] == [136, 392, 648, 904]
    assert by_rank["zig-zag"] == [520] * 4
    for ranks in (2, 4, 8):
        assert ContextRing(ranks, tokens=1024).efficiency == pytest.approx(ranks / (2 * ranks - 1), abs=0.01)


def test_the_picture_of_the_ring_tells_this_step_from_earlier_and_later_ones_and_from_waiting():
    """The rank of each pair is seen in every step; only what waits is an outline."""
    boxes = ContextExplorer(step=1, doublings=2).make_picture().boxes
    shown = {}
    for box in boxes:
        if step := re.search(r"(?:query|rank) .*step (\d)( waits)?$", box.label):
            shown.setdefault(step[2] or int(step[1]), set()).add((box.gpu is None, box.tint))
    key = {box.label[7:]: {(box.gpu is None, box.tint)} for box in boxes if box.label.startswith("legend ")}
    assert shown == {
        1: key["now"],
        0: key["before"],
        2: key["after"],
        3: key["after"],
        " waits": key["waits"],
    }
    assert len(set(map(str, key.values()))) == 4


def test_bytes_of_the_picture_are_those_of_messages():
    """What rank 0 sends on four ranks, counted in the recording."""
    rows, width = 8, 4 * HEADS

    def around():
        rank, ranks = dist.get_rank(), dist.get_world_size()
        pair = [torch.ones(rows, width * KV_HEADS // HEADS).cuda() for _ in range(2)]
        for _ in range(ranks - 1):
            fresh = [torch.empty_like(one) for one in pair]
            calls = [dist.P2POp(dist.isend, one, (rank + 1) % ranks) for one in pair]
            calls += [dist.P2POp(dist.irecv, one, (rank - 1) % ranks) for one in fresh]
            for work in dist.batch_isend_irecv(calls):
                work.wait()
            pair = fresh

    def exchanged():
        for heads in (HEADS, KV_HEADS, KV_HEADS, HEADS):
            part = torch.ones(rows, width * heads // HEADS).cuda()
            dist.all_to_all_single(torch.empty_like(part), part)

    def gathered_and_scattered():
        whole, part = torch.ones(4 * rows, width).cuda(), torch.ones(rows, width).cuda()
        for _ in range(2):
            dist.all_gather_single(whole, part)
            dist.reduce_scatter_single(part, whole)

    unit = 4 * 4 * rows * width
    for name, function, share in (
        ("ring", around, 1),
        ("Ulysses", exchanged, 3 / 4),
        ("TP + SP", gathered_and_scattered, 3 / 4),
    ):
        ran = on_ranks(function, 4).require_success()
        kinds = ("send", "all_to_all_single", "all_gather_single", "reduce_scatter_single")
        total = sum(e.nbytes for e in ran.events if e.rank == 0 and e.name in kinds)
        assert share * total / unit == pytest.approx(sent(4)[name]), name
