"""Exercises of lesson 06: a reader to repair, whose results have the batch on dimension 1."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from labkit.base.texts import Text
from labkit_course.exercise import judge
from labkit_course.judging import Hints, Named, Unreadable
from labkit_course.kinds import read_returned, wrong_return

from .gpus import some_gpus


def _model(answer: object) -> nn.Module:
    """The model, or an object of the class, without a wrapper."""
    model = answer() if isinstance(answer, type) and issubclass(answer, nn.Module) else answer
    if not isinstance(model, nn.Module):
        raise Unreadable
    return model.module if isinstance(model, nn.DataParallel) else model


@judge("06.repair", _model)
def _repair(model: nn.Module) -> Hints:
    with some_gpus(2) as devices, torch.no_grad():
        model = copy.deepcopy(model).to(devices[0]).eval()
        images = torch.linspace(-1, 1, 6 * 8 * 24).sin().mul(40).cos().reshape(6, 1, 8, 24).to(devices[0])
        results = read_returned(model(images), en="`forward`", zh="`forward` ")
        yield from _shapes(results)
        yield from _rows(model, images, *results)
        for rows in (6, 5):
            outputs = nn.DataParallel(model, [*map(torch.device, devices)])(images[:rows])
            for many, one in zip(outputs, model(images[:rows]), strict=True):
                if not _same(many, one):
                    yield Named("counts", rows=rows, many=list(many.shape), one=list(one.shape))


def _shapes(results: object) -> Hints:
    """Hints on the two results for six images on one GPU, as far as their shapes tell."""
    if isinstance(results, Tensor):
        yield Named("one_tensor")
    if not (
        isinstance(results, (tuple, list))
        and len(results) == 2
        and all(isinstance(result, Tensor) for result in results)
    ):
        raise wrong_return(results, Text("two tensors", "两个张量"), en="`forward`", zh="`forward` ")
    scores, hidden = (list(result.shape) for result in results)
    if scores == [12, 6, 10]:
        yield Named("columns_first")
    if scores != [6, 12, 10]:
        yield Named("other_scores", scores=scores)
    if hidden in ([1, 6, 7], [1, 12, 7]):
        yield Named("batch_first", hidden=hidden)
    if len(hidden) < 2 or hidden[0] != 6 or results[1].numel() != 6 * 7:
        yield Named("other_hidden", hidden=hidden)


def _rows(model: nn.Module, images: Tensor, scores: Tensor, hidden: Tensor) -> Hints:
    """Hints on results that are not each image's own: others than if it came alone."""
    single = [model(images[at : at + 1]) for at in range(len(images))]
    right = torch.cat([one[0] for one in single])
    if _same(scores, right) and _same(hidden, torch.cat([one[1] for one in single])):
        return
    if _same(scores.flatten(), right.transpose(0, 1).flatten()):
        yield Named("reshaped")
    yield Named("along_images")


def _same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.allclose(one, other, atol=1e-3)
