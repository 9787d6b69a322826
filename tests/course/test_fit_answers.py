"""The exercises of lesson 20: right answers, also in other shapes, and the hint that each misconception gets."""

from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import (
    checkpoint,
    create_selective_checkpoint_contexts,
    set_checkpoint_early_stop,
)  # fmt: skip

from labkit_course.content import module
from labkit_course.exercise import find
from labkit_ranks.plans.recompute import staircase

on_ranks = module("exercises.on_ranks").on_ranks
fit = module("exercises.fit")


def hinted(id, answer):
    hint = find(id).hint(answer)
    return hint and hint.id


def wrap(module, **options):
    module.forward = partial(checkpoint, module.forward, **{"use_reentrant": False} | options)


def peak(model):
    torch.cuda.reset_peak_memory_stats()
    model(torch.arange(512).view(4, 128).cuda() % 256).square().mean().backward()
    model.zero_grad()
    return torch.cuda.max_memory_allocated()


def recompute(model, room, blocks=lambda model: model[1:], **options):
    for block in blocks(model):
        if peak(model) <= room:
            break
        wrap(block, **options)


def by_wrapper(model, room):
    """PyTorch's own wrapper, on a number of blocks that is computed from two peaks."""
    over, blocks = peak(model) - room, set(model[1:])
    if over > 0:
        kept = 2 * 2**20 - 128 * 1024
        blocks = set(list(model[1:])[: -int(-over // kept)])
        apply_activation_checkpointing(model, check_fn=lambda module: module in blocks)


class Recomputed(nn.Module):
    def __init__(self, block):
        super().__init__()
        self.block = block

    def forward(self, x):
        return checkpoint(self.block, x, use_reentrant=False)


def made_anew(model, room):
    """Another model of the same blocks is returned."""
    for count in range(len(model)):
        made = nn.Sequential(model[0], *map(Recomputed, model[1 : 1 + count]), *model[1 + count :])
        if peak(made) <= room:
            return made


def embedding_too(model, room):
    recompute(model, room)
    wrap(model[0])


def one_more(model, room):
    recompute(model, room)
    if peak(model) > 17 * 2**20:
        wrap(model[1])


def other_dropout(model, room):
    for part in model.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0


def in_part(model, room):
    """Only the MLP of each block is recomputed."""
    recompute(model, room, blocks=lambda model: [block.mlp for block in model[1:]])


def by_halves(model, room):
    """The number of blocks is found by trying half of what is left, and undone each time."""
    blocks, least, most = list(model[1:]), 0, 8
    while least < most:
        for at, block in enumerate(blocks):
            block.__dict__.pop("forward", None)
            if at < (least + most) // 2:
                wrap(block)
        middle = (least + most) // 2
        least, most = (least, middle) if peak(model) <= room else (middle + 1, most)
    for block in blocks:
        block.__dict__.pop("forward", None)
    for block in blocks[:least]:
        wrap(block)


PRODUCTS = [torch.ops.aten.mm.default, torch.ops.aten.addmm.default]
KEEPING = partial(create_selective_checkpoint_contexts, PRODUCTS)


@pytest.mark.parametrize(("answer", "hint"), [
    (recompute, None), (partial(recompute, context_fn=KEEPING), "part"), (by_wrapper, None), (made_anew, None),
    (lambda model, room: wrap(model), "one_unit"),
    (lambda model, room: wrap(model, preserve_rng_state=False), "masks"),
    (partial(recompute, use_reentrant=True), "no_gradient"),
    (lambda model, room: wrap(model, use_reentrant=True), "no_gradient"), (embedding_too, "embedding"),
    (other_dropout, "other_model"), (lambda model, room: None, "nothing"),
    (lambda model, room: [wrap(block) for block in model[-3:]], "last"),
    (lambda model, room: [wrap(block) for block in model[1:3]], "over"),
    (lambda model, room: [wrap(block) for block in model[1:]], "many"),
    (lambda model, room: peak(model) <= room or [wrap(block) for block in model[2:]], "last_many"),
    (one_more, "none_needed"), (in_part, "part"), (by_halves, None),
])  # fmt: skip
def test_the_fewest_blocks_are_recomputed(answer, hint):
    found = hinted("20.recompute", answer)
    assert found == hint


def norm(model, times=1, root=True, share=True):
    gradients = [weight.grad for weight in model.parameters()]
    own = sum(one.to_local().square().sum() for one in gradients if isinstance(one, DTensor))
    if share:
        dist.all_reduce(own)
    found = own + times * sum(one.square().sum() for one in gradients if not isinstance(one, DTensor))
    return found.sqrt() if root else found


def all_added(model, op=dist.ReduceOp.SUM):
    found = norm(model, root=False, share=False)
    dist.all_reduce(found, op=op)
    return found.sqrt()


def of_norms(model):
    found = norm(model, share=False)
    dist.all_reduce(found)
    return found


def of_mean_norms(model):
    return of_norms(model) / dist.get_world_size()


def of_every_norm(model):
    found = sum(
        nn.utils.get_total_norm([getattr(p.grad, "_local_tensor", p.grad)]) for p in model.parameters()
    )
    dist.all_reduce(found)
    return found


def by_torch(model):
    """PyTorch's own norm, of shards and of the others by themselves."""
    gradients = [weight.grad for weight in model.parameters()]
    parts = ([one for one in gradients if isinstance(one, DTensor) == sharded] for sharded in (True, False))
    shards, whole = map(nn.utils.get_total_norm, parts)
    return torch.hypot(shards.full_tensor(), whole).item()


def gathered(model):
    """Every gradient is put together."""
    gradients = (weight.grad for weight in model.parameters())
    whole = [one.full_tensor() if isinstance(one, DTensor) else one for one in gradients]
    return torch.cat([one.flatten() for one in whole]).norm()


def in_place(model):
    """The squares take the place of the gradients."""
    for weight in model.parameters():
        getattr(weight.grad, "_local_tensor", weight.grad).square_()
    own = sum(weight.grad.to_local().sum() for weight in model[0].parameters())
    dist.all_reduce(own)
    return (own + sum(weight.grad.sum() for weight in model[1].parameters())).sqrt()


def by_clipping(model, most=1.0):
    """`clip_grad_norm_` on both parts, which also shortens the gradients."""
    parts = (nn.utils.clip_grad_norm_(part.parameters(), most) for part in model)
    shards, whole = (getattr(one, "full_tensor", lambda one=one: one)() for one in parts)
    return torch.hypot(shards, whole)


@pytest.mark.parametrize(("answer", "hint"), [
    (norm, None), (by_torch, None), (gathered, None), (in_place, "changed"),
    (partial(by_clipping, most=float("inf")), None), (partial(norm, root=False), "no_root"),
    (partial(norm, share=False), "own_shard"), (partial(norm, times=0), "forgotten"), (all_added, "whole_often"),
    (partial(all_added, op=dist.ReduceOp.AVG), "averaged"), (of_norms, "sum_of_norms"),
    (of_every_norm, "sum_of_norms"), (of_mean_norms, "sum_of_norms"),
    (lambda model: nn.utils.get_total_norm([weight.grad for weight in model.parameters()]), "mixed"),
    (lambda model: sum(nn.utils.get_total_norm(list(part.parameters())) for part in model), "other"),
])  # fmt: skip
def test_shards_and_whole_gradients_make_one_norm(answer, hint):
    assert hinted("20.norm", answer) == hint


def clip(model):
    squares = sum(weight.grad.square().sum() for weight in model.parameters())
    dist.all_reduce(squares)
    total = squares.sqrt().item()
    for weight in model.parameters():
        weight.grad *= min(1.0, 1 / total)
    return total


def unscale(model, scale):
    for weight in model.parameters():
        weight.grad /= scale


def overflowed(model):
    bad = torch.stack([~weight.grad.isfinite().all() for weight in model.parameters()]).any().float()
    dist.all_reduce(bad, op=dist.ReduceOp.MAX)
    return bool(bad)


def step(loss, model, optimizer, scale):
    (loss * scale).backward()
    unscale(model, scale)
    if overflowed(model):
        return scale / 2
    clip(model)
    optimizer.step()
    return scale


def by_norm(loss, model, optimizer, scale):
    """The norm of all ranks is inf or nan on all of them: it is the flag."""
    (loss * scale).backward()
    unscale(model, scale)
    total = clip(model)
    if total != total or total == float("inf"):
        return torch.tensor(scale / 4)
    optimizer.step()
    return torch.tensor(scale)


def by_hand(order):
    return partial(fit._scaled_step, order=order)


def alone(loss, model, optimizer, scale, clips=True):
    (loss * scale).backward()
    unscale(model, scale)
    if not all(weight.grad.isfinite().all() for weight in model.parameters()):
        return scale / 2
    if clips:
        clip(model)
    else:
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return scale


def skips_alone(loss, model, optimizer, scale):
    """The step is skipped where the gradient has overflowed; the others take it."""
    (loss * scale).backward()
    unscale(model, scale)
    bad = not all(weight.grad.isfinite().all() for weight in model.parameters())
    if bad:
        model.weight.grad.zero_()
    clip(model)
    if not bad:
        optimizer.step()
    return scale / 2 if bad else scale


def scale_alone(loss, model, optimizer, scale):
    own = torch.tensor(float("inf"))
    (loss * scale).backward()
    own = model.weight.grad.isfinite().all()
    unscale(model, scale)
    if overflowed(model):
        return scale if own else scale / 2
    clip(model)
    optimizer.step()
    return scale


def fixed_scale(loss, model, optimizer, scale):
    return step(loss, model, optimizer, 2.0**8)


def without_nan(loss, model, optimizer, scale):
    """Overflowed numbers become 0, and the step is taken."""
    (loss * scale).backward()
    unscale(model, scale)
    for weight in model.parameters():
        weight.grad.nan_to_num_(0, 0, 0)
    clip(model)
    optimizer.step()
    return scale


@pytest.mark.parametrize(("answer", "hint"), [
    (step, None), (by_norm, None), (fixed_scale, "moved_scale"), (without_nan, "apart_step"),
    (by_hand("scale backward clip unscale flag step"), "clip_first"),
    (by_hand("scale backward flag clip step"), "not_unscaled"),
    (by_hand("scale backward unscale flag step"), "unclipped"),
    (by_hand("scale backward unscale unscale flag clip step"), "twice"), (lambda *given: given[3], "still"),
    (lambda *given: step(*given) and given[3], "no_update"), (lambda *given: step(*given) / 2, "moved_scale"),
    (by_hand("scale backward unscale clip step"), "not_finite"), (alone, "apart"), (skips_alone, "apart_step"),
    (scale_alone, "apart_scale"), (lambda loss, *others: step(loss * 3, *others), "other"),
])  # fmt: skip
def test_a_step_with_loss_scaling(answer, hint):
    assert hinted("20.step", answer) == hint


@pytest.mark.parametrize("every", [0, 1, 3, 4])
def test_the_staircase_is_the_memory_of_blocks_on_a_rank(every):
    """Forward after each block, and each block again while backward recomputes it, in units of a block's input."""
    unit, seen = 4 * 128 * 64 * 4, []

    def measure():
        torch.manual_seed(0)
        blocks, x = [fit._Block().cuda().eval() for _ in range(8)], torch.randn(4, 128, 64).cuda()
        weights = [weight for block in blocks for weight in block.parameters()]
        before = torch.cuda.memory_allocated() - unit  # the first input counts

        def look(*_):
            gradients = sum(weight.grad.nbytes for weight in weights if weight.grad is not None)
            seen.append((torch.cuda.memory_allocated() - before - gradients) / unit)

        def run(own, x):
            for block in own:
                x = block(x)
                look()
            return x

        with set_checkpoint_early_stop(False):
            for first in range(0, 8, every or 8):
                own = blocks[first : first + (every or 8)]
                x = checkpoint(run, own, x, use_reentrant=False) if every else run(own, x)
            x.sum().backward()

    on_ranks(measure, 1).require_success()
    plan = staircase(8, 16, every)
    again = [stair.high for stair in plan.stairs if stair.kind == "R"]
    assert len(seen) == 8 + len(again)
    if every:
        # Besides, the last output of the segment and a gradient, and the two means of each LayerNorm.
        over = [one - high for one, high in zip(seen[8:], again, strict=True)]
        assert all(0.9 < more < 2 + 0.13 * every + 0.1 for more in over), over
    else:
        forward = [stair.high for stair in plan.stairs if stair.kind == "F"]
        assert seen[:8] == pytest.approx([high + 1 for high in forward], abs=0.1)
