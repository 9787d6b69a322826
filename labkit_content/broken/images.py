"""Broken models of images: photos of different size, and a contrastive loss over the whole batch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from labkit.plans.split import split
from labkit_course.judging import Hints, Named

from ..repairs.comparing import is_alike, is_close
from . import repaired
from .judging import ModelRun, models, problem


def _photos(rows: int, generator: Generator) -> tuple[list[Tensor], ...]:
    sizes = torch.randint(4, 10, (rows, 2), generator=generator).tolist()
    return ([torch.rand(3, height, width, generator=generator) for height, width in sizes],)


def pad_to_largest(photos: list[Tensor]) -> list[Tensor]:
    """Pad the photos to one size, with zeros at the right and below."""
    height, width = (max(photo.size(dim) for photo in photos) for dim in (1, 2))
    return [F.pad(photo, (0, width - photo.size(2), 0, height - photo.size(1))) for photo in photos]


@problem("photos", models.Photos, repaired.RepairedPhotos, _photos)
def _photo_hints(seen: ModelRun) -> Hints:
    if seen.failure:
        words, step = seen.failure.words, seen.failure.step
        if step == "before" and ("stack" in words or "Sizes of tensors" in words):
            yield Named("unequal")
        if step == "forward" and "channels" in words:
            yield Named("channels")
        return
    if seen.first_wrong is None or not isinstance(seen.result, Tensor):
        return
    if seen.result.size(0) != seen.case.rows:
        yield Named("list_cut", rows=seen.case.rows, results=seen.result.size(0))
    if not seen.alone and is_close(seen.result[:1], seen.right[:1]):
        yield Named("uncut")
    if seen.alone and is_alike(seen.result, seen.would_give(pad_to_largest(seen.inputs[0]))):
        yield Named("padding_counted")
    if seen.alone:
        yield Named("changed")


def _captions(rows: int, generator: Generator) -> tuple[Tensor, ...]:
    return torch.randn(rows, 12, generator=generator), torch.randn(rows, 6, generator=generator)


@problem("pairs", models.Pairs, repaired.RepairedPairs, _captions)
def _pair_hints(seen: ModelRun) -> Hints:
    if seen.failure:
        if (
            seen.failure.step == "gather"
            or "out of bounds" in seen.failure.words
            or "batch_size" in seen.failure.words
            or "device-side assert" in seen.failure.words
        ):
            yield Named("square")
        return
    if seen.first_wrong is None:
        return
    if not isinstance(seen.result, Tensor) or seen.result.numel() != 1:
        yield Named("no_loss")
    if not seen.alone:
        uneven = len({*split(seen.case.rows, seen.case.gpus).sizes}) > 1
        yield Named("mean_of_means" if uneven else "own_piece")
    yield Named("other_loss")
