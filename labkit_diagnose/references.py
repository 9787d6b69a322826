"""Inputs whose values are places in another input or in the output, such as edges of a graph or offsets of bags.

They cannot be cut by themselves: a piece of them names rows that another GPU has. That it is so is shown by running the
model: where rows are put in another order, and the values that name them are changed alike, the result is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from labkit.base.tree import output_name, tensors

from .comparison import Comparison

# Fewer rows can be in the right order by chance.
_FEWEST = 3


@dataclass(frozen=True)
class Reference:
    """The values of the input ``path`` are places in another one.

    kind   "rows": each names a row of the input ``of``; "starts": each is where a group of its rows starts;
           "groups": each says to which row of the output a row of ``of`` belongs.
    """

    path: str
    of: str
    kind: str


def reference(mode: Comparison) -> Reference | None:
    """Return the first input that holds places in another one, if there is any."""
    for path, values, of, rows in _pairs(mode.inputs.tensors()):
        for kind, holds in (("rows", _names_rows), ("starts", _names_starts), ("groups", _names_groups)):
            if holds(mode, path, values, rows):
                return Reference(path, of, kind)
    return None


def _run_changed(mode: Comparison, change: Callable[[str, Tensor], Tensor]) -> dict[str, Tensor]:
    """Return the outputs on one GPU for changed inputs; none if the model fails with them."""
    try:
        found = tensors(mode.evaluate(mode.inputs.replace_tensors(change)), output_name())
    except Exception:
        return {}
    return found if found.keys() == mode.one.tensors.keys() else {}


def _pairs(found: dict[str, Tensor]) -> Iterator[tuple[str, Tensor, str, int]]:
    """Yield inputs whose values may be places, each with another input and its number of rows, the smallest first."""
    sized: dict[int, str] = {}
    # Of those with as many rows, what is measured is a better name than what is counted.
    for path, tensor in sorted(found.items(), key=lambda pair: not pair[1].is_floating_point()):
        if tensor.dim():
            sized.setdefault(tensor.size(0), path)
    for path, values in found.items():
        counted = not (values.is_floating_point() or values.is_complex() or values.dtype is torch.bool)
        if not (counted and values.dim() and values.numel() and values.layout is torch.strided):
            continue
        least, most = int(values.min()), int(values.max())
        for rows in sorted(sized):
            if rows >= _FEWEST and least >= 0 and most <= rows and sized[rows] != path:
                yield path, values, sized[rows], rows


def _names_rows(mode: Comparison, path: str, values: Tensor, rows: int) -> bool:
    """Whether only the order of the result's rows changes when rows, and with them ``values``, change places."""
    if int(values.max()) >= rows:
        return False
    order = torch.randperm(rows, generator=torch.Generator().manual_seed(0))
    places = order.argsort()

    def ordered(tensor: Tensor) -> Tensor:
        return tensor[order.to(tensor.device)] if tensor.shape[:1] == (rows,) else tensor

    def alike(renamed: bool) -> bool:
        def change(name: str, tensor: Tensor) -> Tensor:
            if name == path and renamed:
                tensor = places.to(tensor.device, tensor.dtype)[tensor.long()]
            return ordered(tensor)

        found = _run_changed(mode, change)
        pairs = [(whole, found[name]) for name, whole in mode.one.tensors.items() if found]
        return bool(found) and all(mode.same(one, it) or mode.same(ordered(one), it) for one, it in pairs)

    # Values that mean something else, such as classes, want no other names, or are not looked at.
    return alike(renamed=True) and not alike(renamed=False)


def _names_starts(mode: Comparison, path: str, values: Tensor, rows: int) -> bool:
    """Whether the first few ``values``, with the rows that they cover, give the first few rows of the result."""
    if values.dim() != 1 or len(values) < 2 or len(values) == rows or not _rises_from_zero(values):
        return False
    groups = len(values) // 2
    stop = int(values[groups])
    return stop > 0 and any(_begins(mode, path, rows, stop, kept, groups) for kept in (groups, groups + 1))


def _names_groups(mode: Comparison, path: str, values: Tensor, rows: int) -> bool:
    """Whether the rows of the first few groups give the first few rows of the result."""
    if values.dim() != 1 or len(values) != rows or not _rises_from_zero(values):
        return False
    groups = (int(values[-1]) + 1) // 2
    stop = int((values < groups).sum())
    return 0 < groups < stop < rows and _begins(mode, path, rows, stop, stop, groups)


def _begins(mode: Comparison, path: str, rows: int, stop: int, kept: int, groups: int) -> bool:
    """Whether ``kept`` values and ``stop`` rows give the result's first rows: one for each group, or for each row."""

    def first(name: str, tensor: Tensor) -> Tensor:
        if name == path:
            return tensor[:kept]
        return tensor[:stop] if tensor.shape[:1] == (rows,) else tensor

    found = _run_changed(mode, first)
    fewer = False
    for name, part in found.items():
        whole = mode.one.tensors[name]
        if not (part.dim() and whole.dim()) or not mode.same(whole[: part.size(0)], part):
            return False
        if part.size(0) != whole.size(0):
            fewer = True
            if part.size(0) not in (groups, stop):
                return False
    return fewer


def _rises_from_zero(values: Tensor) -> bool:
    return int(values[0]) == 0 and bool((values[1:] >= values[:-1]).all())
