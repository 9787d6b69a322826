"""Exercises of lesson 08 that code judges: rows counted in forward, BatchNorm replaced, a gradient averaged by hand."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from labkit.base.texts import Text
from labkit_course.exercise import judge
from labkit_course.judging import Hints, Named, Unreadable
from labkit_course.kinds import a_function, read_returned, wrong_return

from .gpus import some_gpus
from .on_ranks import on_ranks, on_ranks_with_late_sums


def _counted_layer(answer: object) -> nn.Module:
    """Return the learner's layer of 3 inputs and 2 outputs, made from the class if necessary."""
    layer = answer(3, 2) if isinstance(answer, type) and issubclass(answer, nn.Module) else answer
    if not isinstance(layer, nn.Linear):
        raise Unreadable
    return layer


@judge("08.count", _counted_layer)
def _judge_count(layer: nn.Linear) -> Hints:
    with some_gpus(2) as devices, torch.no_grad():
        layer = layer.to(devices[0])
        plain = nn.functional.linear
        for model in (layer, nn.DataParallel(layer, [*map(torch.device, devices)])):
            total = 0
            for rows in (8, 8, 5, 1):
                batch = torch.arange(3.0 * rows, device=devices[0]).reshape(rows, 3)
                facts = {"rows": rows, "gpus": 1 if model is layer else len(devices)}
                try:
                    results = read_returned(model(batch), en="`forward`", zh="`forward` ")
                except StopIteration:
                    yield Named("no_parameters", **facts)
                    return
                except (TypeError, RuntimeError, AssertionError) as error:
                    words = str(error)
                    name = "number" if "iterable" in words else "on_cpu" if "CPU" in words else "raised"
                    yield Named(name, error=words.splitlines()[-1], **facts)
                    return
                if not isinstance(results, (tuple, list)) or len(results) != 2:
                    raise wrong_return(
                        results, Text("two things", "两样东西"), en="`forward`", zh="`forward` "
                    )
                output, counts = results
                if not isinstance(counts, Tensor):
                    yield Named("number", **facts)
                if not torch.equal(output, plain(batch, layer.weight, layer.bias)):
                    yield Named("output", **facts)
                got, total = int(counts.sum()), total + rows
                if got != rows:
                    yield Named("kept" if got == total else "other_count", got=got, **facts)


class _Normalized(nn.Module):
    """A model with three BatchNorms, at the top and inside of other modules."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4)
        self.block = nn.Sequential(nn.Conv2d(4, 6, 1), nn.BatchNorm2d(6), nn.ReLU())
        self.head = nn.ModuleDict({"norm": nn.BatchNorm1d(6), "score": nn.Linear(6, 3)})

    def forward(self, x: Tensor) -> Tensor:
        features = self.block(self.norm(self.conv(x))).mean(dim=(2, 3))
        scores: Tensor = self.head["score"](self.head["norm"](features))
        return scores

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"  # a short repr keeps error messages short


@judge("08.groups", a_function("without_batch_norm"))
def _judge_groups(answer: Callable[..., Any]) -> Hints:
    with some_gpus(2) as devices, torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        given = _Normalized()
        kept = {name: type(one) for name, one in given.named_modules() if not isinstance(one, _BatchNorm)}
        weights = {name: value.clone() for name, value in given.state_dict().items() if "norm" not in name}
        try:
            made = read_returned(answer(given))
        except (RuntimeError, ValueError) as error:
            if "changed size" in str(error):
                yield Named("walks")
            if "num_groups" in str(error):
                yield Named("arguments", error=error)
            raise
        if not isinstance(made, nn.Module):
            raise wrong_return(made, Text("a model", "一个模型"))
        if any(isinstance(module, nn.SyncBatchNorm) for module in made.modules()):
            yield Named("sync")
        for name, module in made.named_modules():
            if isinstance(module, _BatchNorm):
                yield Named("left", name=name)
        if sum(isinstance(module, (nn.GroupNorm, nn.LayerNorm)) for module in made.modules()) < 3:
            yield Named("removed")
        modules, parameters = dict(made.named_modules()), dict(made.named_parameters())
        for name, kind in kept.items():
            if type(modules.get(name)) is not kind:
                yield Named("weights", name=name or "model")
        if not all(module.training for module in modules.values()):
            yield Named("weights", name="training")
        for name, value in weights.items():
            now = parameters.get(name)
            if "block.1" in name:
                continue
            if (
                now is None
                or not now.requires_grad
                or now.dtype != value.dtype
                or not torch.equal(now.cpu(), value)
            ):
                yield Named("weights", name=name)
        made = copy.deepcopy(made).to(devices[0]).train()
        images = torch.randn(6, 2, 5, 5, device=devices[0])
        try:
            one, many = made(images), nn.DataParallel(made, [*map(torch.device, devices)])(images)
        except (RuntimeError, ValueError) as error:
            layer = "normalized_shape" in str(error)
            yield Named("layer_norm" if layer else "raised", error=str(error).splitlines()[-1])
            return
        if not torch.allclose(one, many, atol=1e-4):
            yield Named("depends")
        if torch.allclose(one, one[:1].expand_as(one), atol=1e-3):
            yield Named("constant")


@judge("08.all_reduce", a_function("average"))
def _judge_average(answer: Callable[..., Any]) -> Hints:
    for ranks in (2, 3):
        own = [torch.tensor([1.0 + rank, -4.0, 2.0 * rank * rank]) for rank in range(ranks)]
        ran = on_ranks(answer, ranks, [(gradient,) for gradient in own])
        if ran.failure and "'NoneType'" in ran.failure.words and ran.call_kinds():
            yield Named("used_none")
        results = ran.require_success().results
        silent = [rank for rank, result in enumerate(results) if result is None]
        if 0 < len(silent) < ranks:
            yield Named("some_none", rank=silent[0])
        if silent and ran.call_kinds():
            yield Named("none")
        results = [read_returned(result) for result in results]
        if not all(isinstance(result, Tensor) and result.shape == own[0].shape for result in results):
            raise wrong_return(results[0], Text("a gradient of three numbers", "三个数的梯度"))
        total = torch.stack(own).sum(0)
        if all(torch.allclose(result, total / ranks) for result in results):
            late = on_ranks_with_late_sums(answer, ranks, [(gradient,) for gradient in own]).results
            if not all(torch.allclose(result, total / ranks) for result in late):
                yield Named("unwaited")
            continue
        for rank, result in enumerate(results):
            if torch.allclose(result, own[rank]):
                yield Named("own", rank=rank)
        if not all(torch.allclose(result, results[0]) for result in results):
            yield Named("differ")
        if torch.allclose(results[0], total):
            yield Named("sum")
        yield Named("two" if torch.allclose(results[0], total / 2) else "other", ranks=ranks)
