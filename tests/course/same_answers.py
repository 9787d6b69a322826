"""Right and wrong answers to the exercises of lesson 23, tried with those of the others in test_answers.py."""

import math

import torch
import torch.distributed as dist
from torch.distributed.pipelining import Schedule1F1B, ScheduleGPipe

from labkit_course.content import module

train = module("exercises.train")
loss_sum, is_apart = train.loss_sum, train.is_apart


def by_dtype(dtype):
    return 2e-2 if dtype == torch.bfloat16 else 1e-4


def judged(bound=by_dtype, floor=1e-6, losses=True, alive=True, keys=True):
    """A ``same`` by the norm of each tensor's difference; ``floor``: a share of the whole gradient."""

    def same(one, other):
        a, b = one["gradients"], other["gradients"]
        whole = math.sqrt(sum(float(g.float().square().sum()) for g in b.values()))
        if keys and a.keys() != b.keys() or (alive and not whole > 0):
            return False
        for name in a.keys() & b.keys():
            gap = float((a[name].float() - b[name].float()).norm())
            if not gap <= bound(a[name].dtype) * float(b[name].float().norm()) + floor * whole:
                return False
        first = bound(next(iter(a.values())).dtype)
        return not losses or all(
            abs(x - y) <= first * y for x, y in zip(one["losses"], other["losses"], strict=True)
        )

    return same


def by_eps(one, other):
    """The bound as a multiple of the dtype's own precision; the answer is a tensor."""
    a, b = one["gradients"], other["gradients"]
    if set(a) != set(b):
        return torch.tensor(False)
    whole = torch.stack([g.float().norm() for g in b.values()]).norm()
    ok = [torch.tensor(bool(torch.isfinite(whole) and whole > 0))]
    for name, g in b.items():
        scale = torch.maximum(g.float().norm(), whole * 1e-3)
        share = 1e-4 if g.dtype == torch.float32 else 3 * torch.finfo(g.dtype).eps
        ok.append((a[name].float() - g.float()).norm() / scale <= share)
    ok.append(torch.tensor(one["losses"]).sub(torch.tensor(other["losses"])).abs().max() < 0.01)
    return torch.stack(ok).all()


def last_loss(one, other):
    return abs(one["losses"][-1] - other["losses"][-1]) < 0.02


def by_norms(one, other):
    """Compares norms, not differences."""
    pairs = [
        (g.float().norm(), other["gradients"][name].float().norm()) for name, g in one["gradients"].items()
    ]
    return all(abs(x - y) <= 1e-3 * y for x, y in pairs)


def by_whole(of_all=False, order=2):
    """A bound over the whole gradient: on all differences (``of_all``) or on each tensor's; inf: the largest number."""

    def same(one, other):
        a, b = one["gradients"], other["gradients"]
        if not judged(floor=1.0)(one, other):  # keys, losses, nan and zeros
            return False
        gaps = [(g.float() - b[name].float()).flatten() for name, g in a.items()]
        whole = torch.cat([g.float().flatten() for g in b.values()]).norm(order)
        bound = by_dtype(next(iter(a.values())).dtype) * whole
        return all(bool(gap.norm(order) <= bound) for gap in ([torch.cat(gaps)] if of_all else gaps))

    return same


def stacked(one, other):
    """All gradients in one tensor: without one of them, the shapes differ."""
    a, b = (torch.stack([g.float() for g in of["gradients"].values()]).flatten(1) for of in (one, other))
    return bool(((a - b).norm(dim=1) <= 1e-4 * b.norm(dim=1)).all())


def absolute(one, other):
    a, b = one["gradients"], other["gradients"]
    return a.keys() == b.keys() and all(
        float((g.float() - b[name].float()).norm()) < 1e-3 for name, g in a.items()
    )


def pipeline(before=True, after=False, scale_grads=False, factor=1.0, schedule=Schedule1F1B, own=False):
    """A ``pipeline_step``: where it divides by the words of the batch, or each micro-batch by its own (``own``)."""

    def pipeline_step(stage, words, following, count):
        def loss_of(scores, targets):
            by = (targets != 0).sum().clamp(min=1) if own else count if before else 1
            return loss_sum(scores, targets) * factor / by

        losses, steps = [], schedule(stage, 4, loss_of, scale_grads=scale_grads)
        if stage.is_first:
            steps.step(words)
        else:
            steps.step(target=following, losses=losses)
        total = sum(losses, torch.zeros_like(count))
        return total / count if after else total / (4 if own and scale_grads else 1)

    return pipeline_step


def scaled_afterwards(stage, words, following, count):
    """Divide the gradients when all micro-batches are done."""
    losses, steps = [], Schedule1F1B(stage, 4, loss_sum, scale_grads=False)
    if stage.is_first:
        steps.step(words)
    else:
        steps.step(target=following, losses=losses)
    for parameter in stage.submod.parameters():
        parameter.grad /= count
    return sum(losses, torch.zeros_like(count)) / count


def unprinted(stage, words, following, count):
    pipeline()(stage, words, following, count)
    return torch.zeros_like(count)


def norm(apart=True, count_copies=False, root=True, sums_of_roots=False, mean=False, shared=True):
    def gradient_norm(model):
        found = torch.zeros(2, device="cuda")
        for parameter in model.parameters():
            found[int(is_apart(parameter))] += parameter.grad.square().sum()
        if sums_of_roots:
            total = found.sum().sqrt()
            dist.all_reduce(total)
            return total
        if count_copies:
            dist.all_reduce(found)
        elif apart:
            own = found[1].clone()
            dist.all_reduce(own)
            found[1] = own / (dist.get_world_size() if mean else 1)
        total = found.sum() if shared else found[1]
        return total.sqrt() if root else total

    return gradient_norm


def gathered(model):
    """All squares of all ranks, of copies rank 0's alone."""
    here = [p.grad.square().sum() for p in model.parameters() if is_apart(p) or dist.get_rank() == 0]
    parts = [torch.zeros((), device="cuda") for _ in range(dist.get_world_size())]
    dist.all_gather(parts, torch.stack(here).sum())
    return torch.stack(parts).sum() ** 0.5


def only_rank_0(model):
    total = torch.stack([p.grad.square().sum() for p in model.parameters()]).sum()
    if dist.get_rank() == 0:
        dist.all_reduce(total)
    return total.sqrt()


def elementwise(one, other):
    """PyTorch's allclose, with bounds that follow from the dtype."""
    a, b = one["gradients"], other["gradients"]
    if a.keys() != b.keys() or not any(g.any() for g in a.values()):
        return False
    bound = by_dtype(next(iter(a.values())).dtype)
    return all(torch.allclose(g.float(), b[name].float(), rtol=bound, atol=1e-8) for name, g in a.items())


def converted(one, other):
    """Write float32 gradients into what it was given, after looking at the dtype."""
    verdict = judged()(one, other)
    for gradients in (one["gradients"], other["gradients"]):
        for name, g in gradients.items():
            gradients[name] = g.float()
    return verdict


def in_place(model):
    """The squares take the place of the gradients."""
    found = torch.zeros(2, device="cuda")
    for parameter in model.parameters():
        found[int(is_apart(parameter))] += parameter.grad.square_().sum()
    own = found[1].clone()
    dist.all_reduce(own)
    return (found[0] + own).sqrt()


def by_lookup(one, other):
    """Each tensor of one training is looked up in the other."""
    other = dict(other["gradients"])
    gaps = (
        (g.float() - other[name].float()).norm() / g.float().norm() for name, g in one["gradients"].items()
    )
    gap = max(gaps)
    return judged()(one, one | {"gradients": other}) if gap < 1 else False


RIGHT = {
    "23.same": [judged(), by_eps, converted, judged(lambda dtype: 1e-2 if dtype.itemsize == 2 else 1e-3)],
    "23.pipeline": [pipeline(), pipeline(schedule=ScheduleGPipe), scaled_afterwards],
    "23.norm": [norm(), gathered, train.gradient_norm],
}
WRONG = {
    "23.same": [
        (last_loss, "with AdamW the losses differ by 1e-6 only"), (elementwise, "in entries near 0"),
        (absolute, "an absolute one"), (by_whole(), "with its own norm"), (stacked, "ends in a RuntimeError"),
        (by_norms, "the difference of two tensors has a norm"), (judged(losses=False), "Do you look at all steps"),
        (judged(keys=False), "has no gradient for `words`"), (by_lookup, "ends in a KeyError"),
        (lambda one, other: one["dtype"] == other["dtype"], "the dtype is that of a tensor"),
        (judged(lambda dtype: 1e-4), "in bf16 the gradients differ"), (judged(lambda dtype: 1e-2), "here it is a bug"),
        (judged(floor=0.0), "needs a bound of its own"), (judged(alive=False), "both do not train"),
        (lambda one, other: False, "two trainings with equal numbers"),
    ],
    "23.pipeline": [
        (pipeline(before=False, after=True), "Where does backward begin"),
        (pipeline(scale_grads=True), "There are 4 micro-batches"), (pipeline(factor=4), "There are 4 micro-batches"),
        (pipeline(own=True, scale_grads=True), "by which number is each"),
        (pipeline(own=True), "by which number is each"), (unprinted, "the loss that is returned"),
        (pipeline(after=True), "words, once"), (pipeline(before=False, after=True, scale_grads=True), "not by the"),
        (lambda stage, words, following, count: None, "on rank"),
    ],
    "23.norm": [
        (in_place, "Which call works in place"),
        (norm(apart=False), "what does a rank know of the other ranks' experts"),
        (norm(count_copies=True), "what all ranks hold alike is counted"), (norm(root=False), "or its square"),
        (norm(sums_of_roots=True), "norms do not add up"), (norm(mean=True), "the experts are averaged"),
        (only_rank_0, "it hangs: rank 0 waits for rank 1"), (norm(shared=False), "only the experts are there"),
        (lambda model: torch.tensor(3.0), "and it should be"),
    ],
}  # fmt: skip
