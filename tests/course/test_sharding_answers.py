"""The exercises of lesson 14: right answers, also in other shapes, and the hint that each misconception gets."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer

from labkit_course.exercise import find
from labkit_course.judging import Unreadable


def hinted(id, answer):
    hint = find(id).hint(answer)
    return hint and hint.id


def kinds(stage, ranks, sizes=(2, 2, 12)):
    return sum(size / (ranks if stage >= first else 1) for size, first in zip(sizes, (3, 2, 1), strict=True))


@pytest.mark.parametrize(("function", "hint"), [
    (kinds, None), (lambda stage, ranks: (16, 4, 2, 0)[stage], "gone"),
    (lambda stage, ranks: kinds(min(stage + 1, 3), ranks), "shifted"),
    (lambda stage, ranks: (16, 2 / ranks + 14, 4 / ranks + 12, 16 / ranks)[stage], "order"),
    (lambda stage, ranks: kinds(stage, ranks, (4, 4, 8)), "float32"),
    (lambda stage, ranks: kinds(stage, ranks, (2, 2, 8)), "moments"),
    (lambda stage, ranks: (16, 4 + 12 // ranks, 2 + 2 // ranks + 12 // ranks, 2 * (2 // ranks) + 12 // ranks)[stage],
     "floor"),
    (lambda stage, ranks: 17, "other"), (lambda stage, ranks: kinds(stage, 64), "fixed"),
    (lambda stage, ranks: 7.5 * kinds(stage, ranks), "gigabytes"),
    (lambda stage, ranks: ranks * kinds(stage, ranks), "together"),
    (lambda stage, ranks: (16, 4 + 12 / ranks, 14 + 2 / ranks, 14 + 2 / ranks)[stage], "only"),
])  # fmt: skip
def test_bytes_of_a_parameter(function, hint):
    assert hinted("14.bytes", function) == hint


@pytest.mark.parametrize(("peak", "hint"), [
    (7.5, None), (5, None), (9, None), (4, "nothing"), (3, "less"), (4.5, "little"), (16, "whole"),
])  # fmt: skip
def test_a_peak_is_estimated(peak, hint):
    assert hinted("14.units", peak) == hint


def by_layers(model):
    for layer in model:
        fully_shard(layer)
    return fully_shard(model)


def from_outside(model):
    fully_shard(model)
    for layer in model:
        fully_shard(layer)
    return model, adam(model)


def adam(model):
    return torch.optim.Adam(model.parameters())


def before(model):
    optimizer = adam(model)
    return by_layers(model), optimizer


def frozen_first(model):
    by_layers(model)
    return model, torch.optim.Adam(model[1:].parameters())


def first_layer_only(model):
    fully_shard(model[0])
    return fully_shard(model), adam(model)


def flat(model):
    model = FullyShardedDataParallel(model, use_orig_params=True)
    return model, adam(model)


@pytest.mark.parametrize(("prepare", "hint"), [
    (first_layer_only, "large_unit"), (flat, "shapes"),
    (lambda model: (by_layers(model), adam(model)), None),
    (lambda model: ([fully_shard(layer) for layer in model] and model, adam(model)), None), (before, "still"),
    (lambda model: (fully_shard(model), adam(model)), "one_unit"),
    (lambda model: (model, adam(model)), "alone"),
    (lambda model: (torch.nn.parallel.DistributedDataParallel(model), adam(model)), "not_sharded"),
    (from_outside, "outer_first"), (frozen_first, "other_weights"), (lambda model: by_layers(model), "pair"),
])  # fmt: skip
def test_a_model_is_prepared(prepare, hint):
    assert hinted("14.prepare", prepare) == hint


class Sharded:
    def __init__(self, weights):
        self.weights = weights
        self.own = weights.chunk(dist.get_world_size())[dist.get_rank()].clone()
        self.adam = torch.optim.Adam([self.own])

    def step(self, gradient):
        self.own.grad = self.sum_of(gradient) / dist.get_world_size()
        self.adam.step()
        self.send()

    def sum_of(self, gradient):
        part = torch.empty_like(self.own)
        dist.reduce_scatter_tensor(part, gradient)
        return part

    def send(self):
        dist.all_gather_into_tensor(self.weights, self.own)


class Views(Sharded):
    """The own part is a view of the weights; each part is sent by its owner."""

    def __init__(self, weights):
        self.weights, self.parts = weights, list(weights.chunk(dist.get_world_size()))
        self.own = self.parts[dist.get_rank()]
        self.adam = torch.optim.Adam([self.own])

    def send(self):
        for rank, part in enumerate(self.parts):
            dist.broadcast(part, rank)


class Lists(Sharded):
    def sum_of(self, gradient):
        part = torch.empty_like(self.own)
        dist.reduce_scatter(part, list(gradient.chunk(dist.get_world_size())))
        return part


class ThrownAway(Sharded):
    def sum_of(self, gradient):
        dist.all_reduce(gradient)
        return gradient.chunk(dist.get_world_size())[dist.get_rank()].clone()


class Own(Sharded):
    def sum_of(self, gradient):
        return gradient.chunk(dist.get_world_size())[dist.get_rank()].clone()


class Silent(Sharded):
    def send(self):
        self.weights.chunk(dist.get_world_size())[dist.get_rank()].copy_(self.own)


class Elsewhere(Sharded):
    def send(self):
        self.weights = self.weights.clone()
        super().send()


class Whole:
    def __init__(self, weights):
        self.weights = weights
        self.adam = torch.optim.Adam([weights])

    def step(self, gradient):
        dist.all_reduce(gradient)
        self.weights.grad = gradient / dist.get_world_size()
        self.adam.step()


class Copies(Sharded):
    def __init__(self, weights):
        super().__init__(weights)
        self.before = weights.clone()


class Sum(Sharded):
    def step(self, gradient):
        self.own.grad = self.sum_of(gradient)
        self.adam.step()
        self.send()


class ReadyMade(Whole):
    def __init__(self, weights):
        self.weights = weights.requires_grad_()
        self.adam = ZeroRedundancyOptimizer([self.weights], torch.optim.Adam)


@pytest.mark.parametrize(("sharded", "hint"), [
    (Sharded, None), (Views, None), (Lists, None), (Whole, "whole"), (ThrownAway, "thrown_away"),
    (Own, "own_gradient"), (Silent, "apart"), (Elsewhere, "still"), (Copies, "keeps"), (ReadyMade, "ready_made"),
    (Sum, "sum"),
])  # fmt: skip
def test_an_optimizer_is_sharded(sharded, hint):
    assert hinted("14.optimizer", sharded) == hint


def test_an_object_in_the_place_of_the_class_cannot_be_read():
    with pytest.raises(Unreadable):
        find("14.optimizer").hint(Sharded.step)
