"""Broken models in training: a loss averaged too early, and layers kept in a plain list."""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from labkit.base.language import series
from labkit_course.judging import Hints, Named

from ..repairs.comparing import is_alike
from . import repaired
from .judging import ModelRun, models, problem
from .text import lengths_of


def _text(rows: int, generator: Generator) -> tuple[Tensor, ...]:
    lengths = lengths_of(rows, generator)
    tokens = torch.randint(0, 30, (rows, 9), generator=generator)
    targets = torch.randint(0, 30, (rows, 9), generator=generator)
    return tokens, targets.where(torch.arange(9) < lengths.unsqueeze(1), -1)


@problem("words", models.Words, repaired.RepairedWords, _text)
def _word_hints(seen: ModelRun) -> Hints:
    if seen.failure:
        if "'float' object" in seen.failure.words:
            yield Named("plain_number")
        return
    if seen.first_wrong is None:
        return
    if not isinstance(seen.result, Tensor) or seen.result.numel() != 1:
        yield Named("no_loss")
        return
    got = seen.result.reshape(())
    tokens, targets = seen.inputs
    words = (targets != -1).sum()
    rows = torch.stack(
        [seen.would_give(t, w) for t, w in zip(tokens.split(1), targets.split(1), strict=True)]
    )
    counts = (targets != -1).sum(dim=1)
    if is_alike(got, rows.mean()):
        yield Named("by_sentence")
    if is_alike(got, (rows * counts).sum()):
        yield Named("sum")
    if is_alike(got, (rows * counts).sum() / len(rows)) or is_alike(
        got, (rows * counts).sum() / targets.numel()
    ):
        yield Named("divided_by_rows", words=int(words))
    pieces = list(zip((rows * counts).chunk(seen.case.gpus), counts.chunk(seen.case.gpus), strict=True))
    means = torch.stack([total.sum() / count.sum() for total, count in pieces])
    sizes = torch.tensor([len(count) for _, count in pieces])
    if not seen.alone and (is_alike(got, means.mean()) or is_alike(got, (means * sizes).sum() / sizes.sum())):
        yield Named("mean_of_means", counts=series(int(count.sum()) for _, count in pieces))
    if not seen.alone and is_alike(got, means.sum()):
        yield Named("added")


def _numbers(rows: int, generator: Generator) -> tuple[Tensor, ...]:
    return (torch.randn(rows, 6, generator=generator),)


@problem("experts", models.Experts, repaired.RepairedExperts, _numbers)
def _expert_hints(seen: ModelRun) -> Hints:
    names, wanted = seen.got.names.keys(), seen.want.names.keys()
    if names and not any("expert" in name or name not in wanted for name in names):
        yield Named("plain_list")
    if names and wanted - names:
        yield Named("other_names")
    if seen.failure and ("same device" in seen.failure.words or "different from other" in seen.failure.words):
        yield Named("fixed_device")
    if seen.alone and seen.first_wrong is not None and not seen.failure:
        yield Named("mixed_otherwise")
