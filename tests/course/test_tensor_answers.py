"""The exercises of lesson 15: right answers, also in other shapes, and the hint that each misconception gets."""

import pytest
import torch
import torch.distributed as dist
import torch.distributed.nn.functional as differentiable
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from labkit_course.content import module
from labkit_course.exercise import find

on_ranks = module("exercises.on_ranks").on_ranks


def hinted(id, answer):
    hint = find(id).hint(answer)
    return hint and hint.id


class Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx, partial):
        output = partial.clone()
        dist.all_reduce(output)
        return output

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.clone()
        dist.all_reduce(gradient)
        return gradient


def pair(x, w1, w2, enter=None, leave=None):
    return (leave or Leave.apply)(torch.relu((enter or Enter.apply)(x) @ w1) @ w2)


def hooked(x, w1, w2):
    """A hook on the gradient in the place of a Function."""
    x = x.clone()
    x.register_hook(lambda gradient: dist.all_reduce(gradient) or gradient)
    return pair(x, w1, w2, lambda x: x)


def averaged(x):
    x = x.clone()
    x.register_hook(lambda gradient: dist.all_reduce(gradient, op=dist.ReduceOp.AVG) or gradient)
    return x


def in_place(x, w1, w2):
    """A bare all_reduce, for which backward passes the gradient on."""
    partial = torch.relu(Enter.apply(x) @ w1) @ w2
    dist.all_reduce(partial)
    return partial


def gathered(x, w1, w2):
    """W1 is put together again, and multiplied whole."""
    dist.all_gather([torch.empty_like(w1) for _ in range(dist.get_world_size())], w1)
    return pair(x, w1, w2)


def by_dtensor(x, w1, w2):
    mesh = init_device_mesh("cuda", (dist.get_world_size(),))
    x = DTensor.from_local(x, mesh, [Replicate()])
    one, two = DTensor.from_local(w1, mesh, [Shard(1)]), DTensor.from_local(w2, mesh, [Shard(0)])
    return (torch.relu(x @ one) @ two).redistribute(mesh, [Replicate()]).to_local()


@pytest.mark.parametrize(("answer", "hint"), [
    (pair, None), (hooked, None), (in_place, None),
    (lambda *given: pair(*given, enter=lambda x: x), "x_partial"),
    (lambda *given: pair(*given, leave=lambda partial: partial), "unsummed"),
    (lambda *given: pair(*given, leave=differentiable.all_reduce), "twice"),
    (lambda x, w1, w2: pair(Leave.apply(x), w1, w2), "output_twice"),
    (lambda *given: pair(*given, enter=averaged), "x_mean"), (gathered, "calls"), (by_dtensor, "ready_made"),
    (lambda x, w1, w2: pair(x, w1.detach(), w2), "no_gradient"),
    (lambda *given: pair(*given) * 3, "output_other"),
    (lambda x, w1, w2: Leave.apply(Enter.apply(torch.relu(x @ w1)) @ w2), "other"),
])  # fmt: skip
def test_a_column_row_pair(answer, hint):
    assert hinted("15.pair", answer) == hint


def attend(x, wq, wk, wv, heads, own=lambda heads: heads // dist.get_world_size()):
    batch, length, _ = x.shape
    parts = ((x @ w).view(batch, length, own(heads), -1).transpose(1, 2) for w in (wq, wk, wv))
    return nn.functional.scaled_dot_product_attention(*parts).transpose(1, 2).flatten(2)


def of_known_width(x, wq, wk, wv, heads):
    """The width of a head is that of the model divided by all heads."""
    parts = ((x @ w).view(*x.shape[:2], -1, x.shape[-1] // heads).transpose(1, 2) for w in (wq, wk, wv))
    return nn.functional.scaled_dot_product_attention(*parts).transpose(1, 2).flatten(2)


def by_width(x, wq, wk, wv, heads):
    """The number of heads where their width belongs."""
    parts = ((x @ w).view(*x.shape[:2], -1, heads).transpose(1, 2) for w in (wq, wk, wv))
    return nn.functional.scaled_dot_product_attention(*parts).transpose(1, 2).flatten(2)


@pytest.mark.parametrize(("answer", "hint"), [
    (attend, None), (of_known_width, None), (lambda *given: attend(*given, own=lambda heads: heads), "all_heads"),
    (lambda *given: attend(*given, own=lambda heads: 1), "one_head"),
    (lambda *given: attend(*given, own=lambda heads: heads / dist.get_world_size()), "fraction"),
    (lambda *given: attend(*given, own=lambda heads: heads // 4), "fixed"), (by_width, "other"),
    (lambda *given: attend(*given).flatten(0, 1), "shape"), (lambda *given: attend(*given) * 2, "other"),
])  # fmt: skip
def test_a_rank_has_its_heads(answer, hint):
    assert hinted("15.attend", answer) == hint


def finish(parameters, divided=1):
    for parameter in parameters:
        dist.all_reduce(parameter.grad)
        parameter.grad /= divided


def nothing_left(parameters):
    for parameter in parameters:
        parameter.grad = dist.all_reduce(parameter.grad)


def multiplied(parameters):
    for parameter in parameters:
        parameter.grad *= dist.get_world_size()


def to_rank_0(parameters):
    for parameter in parameters:
        dist.reduce(parameter.grad, 0)


@pytest.mark.parametrize(("answer", "hint"), [
    (finish, None), (lambda parameters: None, "own"),
    (lambda parameters: finish(parameters, dist.get_world_size()), "mean"), (to_rank_0, "rank_0"),
    (lambda parameters: finish(parameters) if dist.get_rank() == 0 else None, "alone"), (nothing_left, "gone"),
    (lambda parameters: finish(parameters[:1]), "some"), (multiplied, "scaled"),
    (lambda parameters: finish(parameters, 7), "other"),
    (lambda parameters: [dist.all_reduce(parameter.data) for parameter in parameters], "weights"),
])  # fmt: skip
def test_gradients_of_the_norm_are_added_up(answer, hint):
    assert hinted("15.finish", answer) == hint


class Gather(torch.autograd.Function):
    """Collect all rows in forward; in backward give each rank the sum of its own."""

    @staticmethod
    def forward(ctx, own):
        return torch.cat(gather_rows(own))

    @staticmethod
    def backward(ctx, gradient):
        return scatter_rows(gradient)


class Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, partial):
        return scatter_rows(partial)

    @staticmethod
    def backward(ctx, gradient):
        return torch.cat(gather_rows(gradient))


class GatherAgain(torch.autograd.Function):
    """A column parallel layer on all rows that keeps only its own, and collects them a second time in backward."""

    @staticmethod
    def forward(ctx, own, w1):
        ctx.save_for_backward(own, w1)
        return torch.cat(gather_rows(own)) @ w1.T

    @staticmethod
    def backward(ctx, gradient):
        own, w1 = ctx.saved_tensors
        return scatter_rows(gradient @ w1), gradient.T @ torch.cat(gather_rows(own))


def gather_rows(own):
    parts = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, own.contiguous())
    return parts


def scatter_rows(whole):
    own = torch.empty_like(whole.chunk(dist.get_world_size())[0])
    dist.reduce_scatter(own, list(whole.contiguous().chunk(dist.get_world_size())))
    return own


@pytest.mark.parametrize(("again", "kept", "gathers"), [(False, 144, 2), (True, 96, 3)])
def test_sequence_parallelism_keeps_rows_whole_or_gathers_them_again(again, kept, gathers):
    """What lesson 15 says of its own sizes, on 4 ranks: KiB kept for backward, and the calls of a step."""

    def step(size=256):
        own = torch.ones(16, size, device="cuda", requires_grad=True)
        w1, w2 = (torch.ones(size, size, device="cuda", requires_grad=True) for _ in range(2))
        before = torch.cuda.memory_allocated()
        normal = nn.functional.layer_norm(own, (size,))
        hidden = torch.relu(GatherAgain.apply(normal, w1) if again else Gather.apply(normal) @ w1.T)
        output = Scatter.apply(hidden @ w2)
        del normal, hidden
        held = (torch.cuda.memory_allocated() - before) // 1024
        output.sum().backward()
        return held

    ran = on_ranks(step, 4).require_success()
    assert ran.results == [kept] * 4
    assert (ran.count("all_gather"), ran.count("reduce_scatter")) == (gathers, 2)
