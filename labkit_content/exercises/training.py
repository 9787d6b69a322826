"""Exercises of lesson 07: gradients that are summed, a mean put right, and a batch that goes through in parts."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from math import isclose
from typing import Any

import torch
from torch import nn

from labkit_course.exercise import derive_facts, judge
from labkit_course.judging import Hints, Named
from labkit_course.kinds import A_NUMBER, a_function, read_returned

from .gpus import some_gpus


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


@judge("07.parts", a_function("accumulate"))
def _judge_parts(answer: Callable[..., Any]) -> Hints:
    # The last model shows whether rows are scaled before they enter.
    for rows, size, curve in (
        (12, 5, nn.Identity),
        (12, 4, nn.Identity),
        (20, 8, nn.Identity),
        (12, 5, nn.Softplus),
    ):
        with some_gpus(2) as devices:
            line = nn.Linear(1, 1, bias=False).to(devices[0])
            nn.init.ones_(line.weight)
            model = nn.Sequential(line, curve())
            x = torch.arange(float(rows), device=devices[0]).reshape(rows, 1)
            parts = x.split(size)
            want = torch.autograd.grad(model(x).mean(), line.weight)[0].item()
            rows_alive = _RowsAlive()
            line.register_forward_pre_hook(rows_alive.enter)
            line.weight.register_hook(rows_alive.leave)
            if (returned := answer(model, parts)) is ...:
                read_returned(returned)
            if line.weight.item() != 1:
                yield Named("stepped")
            if line.weight.grad is None:
                yield Named("no_gradient")
                return
            got = line.weight.grad.item()
            if not isclose(got, want, rel_tol=1e-5):
                yield _explain_gradient(got, want, parts, rows_alive.gradients)
            elif rows_alive.largest > size:
                yield Named("at_once")
            elif rows_alive.most > size:
                yield Named("kept")


class _RowsAlive:
    """Counts the rows that have gone forward and whose gradient has not come: ``most`` at a time, ``largest`` call."""

    def __init__(self) -> None:
        self.now = self.most = self.largest = 0
        self.gradients: list[float] = []

    def enter(self, _: nn.Module, inputs: tuple[torch.Tensor]) -> None:
        rows = len(inputs[0]) * torch.is_grad_enabled()
        self.now += rows
        self.most, self.largest = max(self.most, self.now), max(self.largest, rows)

    def leave(self, gradient: torch.Tensor) -> None:
        self.now = 0
        self.gradients.append(gradient.item())


def _explain_gradient(got: float, want: float, parts: Sequence[torch.Tensor], arrived: list[float]) -> Named:
    sizes = [len(part) for part in parts]
    total = sum(part.sum().item() for part in parts)
    means = sum(part.mean().item() for part in parts)
    mistakes = (
        *(("zeroed", last) for last in arrived[1:][-1:]),
        ("of_means", means / len(parts)), ("added", means), ("sum", total), ("by_parts", total / len(parts)),
        ("fixed", total / 12), ("first", total / len(parts) / sizes[0]),
    )  # fmt: skip
    near = (name for name, made in mistakes if isclose(got, made, rel_tol=1e-5))
    facts = {"sizes": sizes, "rows": sum(sizes), "got": got, "want": want}
    return Named(next(near, "other"), case=Named("case"), **facts)
