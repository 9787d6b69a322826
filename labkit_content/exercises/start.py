"""Exercises of lesson 00: a tensor's bytes, a first split on 4 GPUs, and a sum of tensors on two devices."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from random import Random
from typing import Any

import torch

from labkit.base.texts import Text
from labkit.plans.split import split
from labkit_course.exercise import derive_facts, judge
from labkit_course.judging import Hints, Named
from labkit_course.kinds import a_function, numbers, read_returned, wrong_return

from .gpus import some_gpus


@derive_facts(
    "00.bytes",
    rows=(1000, 1, 1_000_000),
    columns=(5, 1, 1000),
    fresh=lambda random: {"rows": random.randrange(200, 3000, 100), "columns": random.choice((3, 5, 7, 9))},
)
def _derive_bytes(rows: int, columns: int) -> dict[str, int]:
    count = rows * columns  # "everywhere": a copy on each of four GPUs
    stored = -(-4 * count // 512) * 512
    sizes = {"half": 2 * count, "bytes": 4 * count, "double": 8 * count, "everywhere": 16 * count}
    return {"numbers": count, "stored": stored, **sizes}


def _draw_few_rows(random: Random) -> dict[str, int]:
    gpus = random.randint(3, 8)
    return {"rows": random.randint(gpus + 1, 4 * gpus), "gpus": gpus}


@derive_facts("00.first_split", rows=(9, 1, 200), gpus=(4, 1, 64), fresh=_draw_few_rows)
def _derive_first_split(rows: int, gpus: int) -> dict[str, object]:
    plan = split(rows, gpus)
    pieces, idle = len(plan.sizes), len(plan.idle)
    tail = Named("some_idle" if idle else "all_busy", pieces=pieces, idle=idle)
    return {"sizes": list(plan.sizes), "chunk": -(-rows // gpus), "tail": tail}


@judge("00.first_split", numbers)
def _judge_first_split(sizes: tuple[int, ...], rows: int, gpus: int) -> Hints:
    right, down = tuple(split(rows, gpus).sizes), rows // gpus
    if sizes == right:
        return
    if sizes == (*right, *[0] * (gpus - len(right))):
        yield Named("zeros")
    if sizes == (rows,) * gpus:
        yield Named("whole")
    # Pieces rounded down: the rest is lost, is in the last piece, or makes more pieces.
    rounded = ((down,) * gpus, (down,) * (gpus - 1) + (rows - down * (gpus - 1),), _fill_pieces(rows, down))
    if down != right[0] and sizes in rounded:
        yield Named("down")
    if sum(sizes) != rows:
        yield Named("not_all", total=sum(sizes))
    if sorted(sizes) == sorted(down + (k < rows % gpus) for k in range(gpus)):
        yield Named("even")
    yield Named("other")


def _fill_pieces(rows: int, piece: int) -> tuple[int, ...]:
    return tuple(min(piece, rows - start) for start in range(0, rows, piece)) if piece else ()


@judge("00.add", a_function("add"))
def _judge_add(answer: Callable[..., Any]) -> Hints:
    with some_gpus() as devices:
        for here, there in (
            ("cpu", devices[0]),
            (devices[-1], "cpu"),
            (devices[0], devices[-1]),
            (devices[0], devices[0]),
        ):
            x, y = torch.arange(3.0, device=here), torch.full((3,), 2.0, device=there)
            facts = {"case": Named("case"), "here": here, "there": there}
            try:
                got = read_returned(answer(x, y))
            except RuntimeError as error:
                places = ["cpu", *(f"cuda:{gpu}" for gpu in range(torch.cuda.device_count()))]
                apart = "fixed" if any(_adds(answer, *pair) for pair in permutations(places, 2)) else "apart"
                yield Named(apart if "same device" in str(error) else "raised", error=error, **facts)
                return
            if not isinstance(got, torch.Tensor):
                raise wrong_return(got, Text("a tensor", "一个张量"))
            for name, given, was, place in (
                ("x", x, torch.arange(3.0), here),
                ("y", y, torch.full((3,), 2.0), there),
            ):
                if str(given.device) != place or not torch.equal(given.cpu(), was):
                    yield Named("in_place", name=name, **facts)
            if str(got.device) != here:
                yield Named("elsewhere", device=got.device, **facts)
            if got.shape != x.shape or not torch.equal(got.cpu(), torch.arange(3.0) + 2):
                yield Named("other", **facts)
        x, y = (torch.ones(3, device=device, requires_grad=True) for device in ("cpu", devices[0]))
        total = answer(x, y).sum()
        if total.requires_grad:
            total.backward()
        for name, tensor in (("x", x), ("y", y)):
            if tensor.grad is None:
                yield Named("cut_off", name=name)


def _adds(answer: Callable[..., Any], here: str, there: str) -> bool:
    """Whether ``answer`` can add a tensor on ``there`` to one on ``here``."""
    try:
        answer(torch.ones(3, device=here), torch.ones(3, device=there))
    except Exception:  # of the learner's code
        return False
    return True
