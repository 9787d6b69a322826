"""Inputs whose values are indices into another input or the output, such as edges of a graph or offsets of bags.

Such an input cannot be cut independently: a piece refers to rows on another GPU. The proof is a run of the model with
rows in another order and indices changed accordingly, which gives the same result.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from .comparison import Comparison

# Inputs with fewer rows may match by chance.
_FEWEST = 3


@dataclass(frozen=True)
class Reference:
    """An input ``path`` whose values are indices into another one.

    kind   "rows": each value is the index of a row of the input ``of``; "starts": the first row of a group of rows;
           "groups": the index of the output row to which a row of ``of`` belongs.
    """

    path: str
    of: str
    kind: str


def find_reference(mode: Comparison) -> Reference | None:
    """Return the first input with indices into another input, or None."""
    for path, values, of, rows in _pairs(mode.inputs.tensors()):
        for kind, holds in (("rows", _names_rows), ("starts", _names_starts), ("groups", _names_groups)):
            if holds(mode, path, values, rows):
                return Reference(path, of, kind)
    return None


def _pairs(found: dict[str, Tensor]) -> Iterator[tuple[str, Tensor, str, int]]:
    """Yield (path, values, other path, rows) for inputs that may hold indices into another one, the smallest first."""
    sized: dict[int, str] = {}
    # Among inputs with equally many rows, prefer floating-point inputs as the name to show.
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
    """Return whether reordering the rows, and ``values`` with them, only reorders the rows of the result."""
    if int(values.max()) >= rows:
        return False
    order = torch.randperm(rows, generator=torch.Generator().manual_seed(0))
    positions = order.argsort()

    def reorder(tensor: Tensor) -> Tensor:
        return tensor[order.to(tensor.device)] if tensor.shape[:1] == (rows,) else tensor

    def reorders_only(renumber: bool) -> bool:
        def change(name: str, tensor: Tensor) -> Tensor:
            if name == path and renumber:
                tensor = positions.to(tensor.device, tensor.dtype)[tensor.long()]
            return reorder(tensor)

        found = mode.outputs_of(lambda: mode.inputs.replace_tensors(change))
        pairs = [(whole, found[name]) for name, whole in mode.one.tensors.items()] if found else []
        return bool(found) and all(mode.same(one, it) or mode.same(reorder(one), it) for one, it in pairs)

    # Other whole numbers, such as classes, give the same result without renumbering.
    return reorders_only(renumber=True) and not reorders_only(renumber=False)


def _names_starts(mode: Comparison, path: str, values: Tensor, rows: int) -> bool:
    """Return whether the first half of ``values``, with the rows of these groups, gives the result's first rows."""
    if values.dim() != 1 or len(values) < 2 or len(values) == rows or not _rises_from_zero(values):
        return False
    groups = len(values) // 2
    stop = int(values[groups])
    return stop > 0 and any(
        _gives_first_rows(mode, path, rows, stop, n, groups) for n in (groups, groups + 1)
    )


def _names_groups(mode: Comparison, path: str, values: Tensor, rows: int) -> bool:
    """Return whether the rows of the first half of the groups give the result's first rows."""
    if values.dim() != 1 or len(values) != rows or not _rises_from_zero(values):
        return False
    groups = (int(values[-1]) + 1) // 2
    stop = int((values < groups).sum())
    return 0 < groups < stop < rows and _gives_first_rows(mode, path, rows, stop, stop, groups)


def _gives_first_rows(mode: Comparison, path: str, rows: int, stop: int, count: int, groups: int) -> bool:
    """Return whether ``count`` values and ``stop`` rows give the result's first rows, one per group or per row."""

    def take_first(name: str, tensor: Tensor) -> Tensor:
        if name == path:
            return tensor[:count]
        return tensor[:stop] if tensor.shape[:1] == (rows,) else tensor

    found = mode.outputs_of(lambda: mode.inputs.replace_tensors(take_first))
    fewer = False
    for name, part in (found or {}).items():
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
