"""Broken models of graphs and shops: an input that belongs to no row, and rows that are laid end to end."""

from __future__ import annotations

import torch
from torch import Generator, Tensor
from torch.nn.utils.rnn import pad_sequence

from labkit_course.judging import Hints, Named

from ..repairs.comparing import is_alike
from . import repaired
from .judging import ModelRun, models, problem


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
