"""The ten broken models: a batch for each, and the hints on wrong repairs, the likeliest first."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Generator, Tensor
from torch.nn.utils.rnn import pad_sequence

from labkit.base.language import series
from labkit.base.tree import tensors
from labkit.plans.split import split
from labkit_course.judging import Hints, Named

from ..repairs.comparing import is_alike, is_close
from . import repaired
from .judging import ModelRun, models, problem

# Sentences of different length, and an RNN state passed from call to call.


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


# Photos of different size, and a contrastive loss over the whole batch.


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


# Graphs and shops: an input without rows, and rows laid end to end.


def _city(rows: int, generator: Generator) -> tuple[Tensor, ...]:
    roads = int(torch.randint(11, 20, (1,), generator=generator))
    return (
        torch.randn(rows, 6, 4, generator=generator),
        torch.randint(0, 6, (roads, 2), generator=generator),
    )


@problem("roads", models.Roads, repaired.RepairedRoads, _city)
def _road_hints(seen: ModelRun) -> Hints:
    if seen.failure:
        if "same device" in seen.failure.words:
            yield Named("stays")
        if seen.failure.step == "forward" and (
            "unpack" in seen.failure.words or "index" in seen.failure.words
        ):
            yield Named("shape_in_forward")
        return
    if (
        seen.first_wrong is None
        or not isinstance(seen.result, Tensor)
        or seen.result.shape != seen.right.shape
    ):
        return
    if seen.first_wrong and is_alike(seen.got.results[0], seen.want.results[0]):
        yield Named("first_city")
    if seen.alone:
        yield Named("other_roads")
    yield Named("roads_cut")


def _shop(rows: int, generator: Generator) -> tuple[Tensor, ...]:
    counts = torch.randint(1, 7, (rows,), generator=generator)
    counts[0] += 3  # equal parts of the clicks must never match equal numbers of people
    return torch.randint(0, 40, (int(counts.sum()),), generator=generator), counts


@problem("clicks", models.Clicks, repaired.RepairedClicks, _shop)
def _click_hints(seen: ModelRun) -> Hints:
    if seen.failure:
        if "split_with_sizes" in seen.failure.words or seen.failure.step == "scatter":
            yield Named("flat")
        return
    if seen.first_wrong is None or not isinstance(seen.result, Tensor):
        return
    sizes = {len(result) for result in seen.got.results if isinstance(result, Tensor) and result.dim()}
    if seen.idle or sizes - {seen.case.rows}:  # a basket of one click gives work to only one GPU
        yield Named("list_cut")
    clicks, counts = seen.inputs
    filled = pad_sequence(list(clicks.split(counts.tolist())), batch_first=True)
    whole = torch.full_like(counts, filled.size(1))
    if seen.alone and is_alike(seen.result, seen.would_give(filled.flatten(), whole)):
        yield Named("padding_counted")
    yield Named("other_basket")


# A loss averaged too early, and layers kept in a plain list.


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


# A table cached for the next call, and running statistics.


def _series(rows: int, generator: Generator) -> tuple[Tensor, ...]:
    steps = int(torch.randint(3, 12, (1,), generator=generator))
    return (torch.randn(rows, steps, 8, generator=generator),)


@problem("waves", models.Waves, repaired.RepairedWaves, _series)
def _wave_hints(seen: ModelRun) -> Hints:
    if seen.got.names.keys() - seen.want.names.keys():
        yield Named("saved")
    if not seen.failure:
        if seen.alone and seen.first_wrong is not None:
            yield Named("other_waves")
        return
    if "same device" in seen.failure.words or "different from other" in seen.failure.words:
        yield Named("first_come")
    if seen.failure.step == "forward" and "size of tensor" in seen.failure.words:
        yield Named("stale")


def _readings(rows: int, generator: Generator) -> tuple[Tensor, ...]:
    offsets = torch.linspace(-2, 2, rows).unsqueeze(1) if rows > 1 else torch.zeros(1, 1)
    return (torch.randn(rows, 5, generator=generator) + offsets,)


@problem("surprise", models.Surprise, repaired.RepairedSurprise, _readings)
def _surprise_hints(seen: ModelRun) -> Hints:
    if seen.failure:
        if seen.failure.step == "after":
            yield Named("after")
        return
    states = [state["usual"] for state in seen.got.states]
    rights = [state["usual"] for state in seen.want.states]
    initial = (seen.case.state or {})["usual"]
    if len(states) == 3 and not is_close(states[2], states[1]) and is_close(states[1], rights[1]):
        yield Named("eval")
    if all(is_close(one, right) for one, right in zip(states, rights, strict=False)):
        yield Named("history" if seen.first_wrong is None else "early")
        return
    if is_close(states[0], initial):
        yield Named("lost")
    if seen.alone:
        yield Named("other_update")
    whole = len(seen.inputs[0]) % seen.case.gpus == 0
    yield Named("first_piece" if whole else "mean_of_means")
