"""The rubric: cases drawn for the student, and what is right by another way."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ...draw import Draw
from ...judging import Ask, part, same
from ...verdict import Hint
from . import checks, drivers


@part(
    "split",
    2,
    en="Pieces of ceil(rows / GPUs) rows, the last one short",
    zh="每个分块 ⌈行数 / GPU 数⌉ 行，最后一块可以不满",
)
def rule(ask: Ask, draw: Draw) -> Iterator[Hint]:
    cases = [(draw.integer(9, 99), draw.integer(2, 8)) for _ in range(8)]
    for (rows, gpus), got in zip(cases, ask(drivers.split, cases=cases), strict=True):
        yield from checks.wrong_sizes(
            rows, gpus, got, [len(piece) for piece in torch.arange(rows).chunk(gpus)]
        )


@part("scatter", 2, en="Every row arrives, on the right GPU", zh="每一行都送到了对的 GPU 上")
def arrives(ask: Ask, draw: Draw) -> Iterator[Hint]:
    rows, gpus = draw.integer(9, 99), draw.integer(2, 8)
    batch = draw.tensor(rows, 3)
    right = [(f"cuda:{gpu}", piece) for gpu, piece in enumerate(batch.chunk(gpus))]
    if not same(ask(drivers.scatter, batch=batch, gpus=gpus), right):
        yield Hint("scatter", "rows are missing, or elsewhere", "有的行丢了，或者送错了地方")
