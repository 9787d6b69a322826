"""The exercise of lesson 08 that code judges: a gradient that two ranks average by hand."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from labkit.base.texts import Text
from labkit_course.exercise import judge
from labkit_course.judging import Hints, Named, Unreadable

_NONE = Text(
    en="`answer` is `None` on a rank: complete the cell above, and run both again. (`dist.all_reduce` returns `None`; "
    "it changes the tensor that it is given.)",
    zh="有的 rank 上 `answer` 是 `None`：请补完上面的单元格，再把两个单元格都运行一遍。"
    "（`dist.all_reduce` 返回的是 `None`，它改写的是传给它的那个张量。）",
)
# Rows that each of the two ranks has.
_EACH = 4


def _gradients(answer: object) -> list[torch.Tensor]:
    """What the ranks hold, as plain tensors of three numbers."""
    if not isinstance(answer, list) or len(answer) != 2:
        raise Unreadable
    if any(given is None for given in answer):
        raise Unreadable(_NONE)
    try:
        plain = [given.tolist() if hasattr(given, "tolist") else given for given in answer]
        made = [torch.tensor(given, dtype=torch.float32).flatten() for given in plain]
    except (TypeError, ValueError, RuntimeError):
        raise Unreadable from None
    if any(len(given) != 3 for given in made):
        raise Unreadable
    return made


def _own() -> list[torch.Tensor]:
    """The gradients that the ranks of the lesson's cell find, each of its own rows."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model, rows = nn.Linear(3, 1), torch.randn(2 * _EACH, 3)
    found = []
    for rank in (0, 1):
        model.zero_grad()
        model(rows[rank::2]).square().mean().backward()
        found.append(model.weight.grad.detach().clone().flatten())  # type: ignore[union-attr]  # it was just made
    return found


@judge("08.all_reduce", _gradients)
def _all_reduce(answer: list[torch.Tensor]) -> Hints:
    own = _own()
    total = own[0] + own[1]
    mistakes: dict[str, Any] = {"sum": total, "by_rows": total / (2 * _EACH)}
    if all(_near(given, total / 2) for given in answer):
        return
    for rank, given in enumerate(answer):
        if _near(given, own[rank]):
            yield Named("own", rank=rank)
    if not _near(*answer):
        yield Named("differ")
    yield Named(next((name for name, made in mistakes.items() if _near(answer[0], made)), "other"))


def _near(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.allclose(one, other, rtol=1e-4, atol=1e-6)
