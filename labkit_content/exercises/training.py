"""Exercises of lesson 07: gradients that are summed, and a mean put right."""

from __future__ import annotations

import re
from collections.abc import Callable
from math import isclose
from typing import Any

import torch

from labkit_course.exercise import derive_facts, judge
from labkit_course.judging import Hints, Named
from labkit_course.kinds import A_NUMBER, a_function, read_returned


@derive_facts(
    "07.sum",
    rows=(12, 2, 1000),
    gpus=(4, 2, 64),
    fresh=lambda random: {"rows": random.randint(5, 40), "gpus": random.randint(2, 8)},
)
def _derive_sum(rows: int, gpus: int) -> dict[str, int]:
    return {"chunk": -(-rows // gpus), "gpus_times": rows * gpus}


@judge("07.mean", a_function("mean_loss"))
def _judge_mean(answer: Callable[..., Any]) -> Hints:
    for means, sizes in (
        ([0.0, 7.0], [4, 3]),
        ([1.0, 2.0, 6.0], [4, 4, 2]),
        ([5.0], [3]),
        ([2.0, 4.0], [5, 5]),
    ):
        given = torch.tensor(means), torch.tensor(sizes)  # as gather gives them
        yield from _compare_means(read_returned(answer(*given), A_NUMBER), means, sizes)
    gathered, counts = torch.tensor([0.0, 7.0], requires_grad=True), torch.tensor([4, 3])
    try:
        loss = answer(gathered, counts)
        if isinstance(loss, torch.Tensor) and loss.requires_grad:
            loss.sum().backward()
    except RuntimeError as error:
        if re.search("in-?place", str(error)):
            yield Named("in_place")
        # NumPy refuses a tensor that has a gradient
    if gathered.grad is None or not gathered.grad.any():
        yield Named("no_gradient")
    elif not torch.allclose(gathered.grad, torch.tensor([4 / 7, 3 / 7])):
        yield Named("other_gradient", got=[round(share, 3) for share in gathered.grad.tolist()])
    if counts.tolist() != [4, 3]:
        yield Named("in_place")


def _compare_means(got: float, means: list[float], sizes: list[int]) -> Hints:
    total = sum(mean * size for mean, size in zip(means, sizes, strict=True))
    rows = sum(sizes)
    if isclose(got, total / rows, rel_tol=1e-5):
        return
    mistakes = (
        ("of_means", sum(means) / len(means)), ("sum", total), ("by_pieces", total / len(means)),
        ("added", sum(means)), ("added", sum(means) / rows),
    )  # fmt: skip
    near = (name for name, made in mistakes if isclose(got, made, rel_tol=1e-5))
    seen = {"means": means, "sizes": sizes, "rows": rows, "got": got, "want": total / rows}
    yield Named(next(near, "other"), case=Named("case"), **seen)
