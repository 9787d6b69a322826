"""Broken models with state: a table cached for the next call, and running statistics."""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from labkit_course.judging import Hints, Named

from ..repairs.comparing import is_close
from . import repaired
from .judging import ModelRun, models, problem


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
