"""Broken models of text: sentences of different length, and an RNN state passed from call to call."""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from labkit.base.tree import tensors
from labkit_course.judging import Hints, Named

from ..repairs.comparing import is_alike, is_close
from . import repaired
from .judging import ModelRun, models, problem


def lengths_of(rows: int, generator: Generator, longest: int = 9) -> Tensor:
    """Return the lengths of ``rows`` sentences: one has the ``longest``, all others are much shorter."""
    lengths = torch.randint(1, longest - 3, (rows,), generator=generator)
    lengths[torch.randint(rows, (1,), generator=generator)] = longest
    return lengths


def _sentences(rows: int, generator: Generator) -> tuple[Tensor, ...]:
    lengths = lengths_of(rows, generator, int(torch.randint(7, 10, (1,), generator=generator)))
    tokens = torch.randint(1, 50, (rows, int(lengths.max())), generator=generator)
    return tokens.where(torch.arange(tokens.size(1)) < lengths.unsqueeze(1), 0), lengths


@problem("tagger", models.Tagger, repaired.RepairedTagger, _sentences)
def _tagger(seen: ModelRun) -> Hints:
    if seen.failure and seen.failure.step == "gather":
        yield Named("own_length")
    if seen.failure and "lengths" in seen.failure.words and "argument:" not in seen.failure.words:
        yield Named("lengths_on_gpu")
    if (
        seen.failure
        or seen.first_wrong is None
        or not isinstance(seen.result, Tensor)
        or seen.result.dim() != 3
    ):
        return
    got, right = seen.result.size(1), seen.right.size(1)
    if got > right:
        yield Named("fixed_length", got=got, right=right)
    if got < right:
        yield Named("cut_off", got=got, right=right)
    if seen.alone and seen.result.shape == seen.right.shape:
        yield Named("padding_read")
    words = seen.inputs[0] != 0
    if seen.result.shape == seen.right.shape and is_close(seen.result[words], seen.right[words]):
        yield Named("padded_after")


def _letters(rows: int, generator: Generator) -> tuple[Tensor | tuple[Tensor, ...], ...]:
    steps = int(torch.randint(3, 7, (1,), generator=generator))
    typed = torch.randint(0, 20, (rows, steps), generator=generator)
    state = torch.randn(2, 2, rows, 8, generator=generator)
    return typed, (state[0].clone(), state[1].clone())


@problem("typist", models.Typist, repaired.RepairedTypist, _letters)
def _typist(seen: ModelRun) -> Hints:
    if seen.failure:
        if "Expected hidden" in seen.failure.words:
            yield Named("state_cut")
        if "contiguous" in seen.failure.words:
            yield Named("contiguous")
        return
    found = tensors(seen.result, "")
    if seen.first_wrong is None or found.keys() != tensors(seen.right, "").keys():
        return
    scores, *state = found.values()
    rows = seen.case.rows
    if all(part.dim() == 3 and part.size(0) == rows != 2 for part in state):
        yield Named("not_turned_back", shape=list(state[0].shape))
    if any(part.shape != right.shape for part, right in zip(state, seen.right[1], strict=True)):
        yield Named("state_joined", shape=list(state[0].shape))
    typed, first = seen.inputs
    if is_alike(scores, seen.would_give(typed, tuple(torch.zeros_like(part) for part in first))[0]):
        yield Named("state_unused")
    if scores.shape == seen.right[0].shape:
        yield Named("reshaped")
