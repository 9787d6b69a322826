"""Find the batch dimension of each input and output by running the model on pieces of the batch.

DataParallel scatters every input and gathers every output along one dimension. If this changes the results, search for
a layout that does not: an input cut along another dimension or not at all, an output gathered along another dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations, islice, product
from time import monotonic

import torch
from torch import Tensor

from labkit.base.tree import input_name, tensors
from labkit.plans.split import Piece, split

from .comparison import Comparison
from .inputs import ModelInputs
from .rounding import is_number

# Limits of the search: combinations of dimensions, seconds, and pieces of the batch.
_MOST = 40
_SECONDS = 60
_PIECES = 8
WHOLE = None  # an input that every replica needs whole

# Path of a tensor -> the dimension of its batch, or WHOLE.
Axes = dict[str, int | None]


@dataclass(frozen=True)
class Layout:
    """Batch dimensions under which pieces give the right results.

    batch     the number of rows.
    inputs    the batch dimension of each tensor that DataParallel cuts, or WHOLE.
    outputs   the batch dimension of each output tensor, or WHOLE.
    lists     names of input lists whose items are the rows.
    """

    batch: int
    inputs: Axes
    outputs: Axes
    lists: tuple[str, ...] = ()


@dataclass(frozen=True)
class Fit:
    """The relation of the pieces' results to the whole batch's result, for one output.

    axis   the dimension of the whole result along which the pieces' results are slices; None if there is none.
    how    the relation without such a dimension, "" if unknown:
           "over_rows": the shape does not depend on the number of rows, the model reduces over them;
           "uncut": every piece gives the whole result, independent of the rows;
           "short": slices along the cut dimension, but each piece has its own length in another dimension;
           "pairs": the result has two batch dimensions, and a piece gives the block of its own rows in both.
    """

    axis: int | None
    how: str = ""


def batch_of(inputs: ModelInputs, dim: int = 0) -> int:
    """Return the number of rows: the most frequent size of the tensors in dimension ``dim``."""
    found = inputs.scattered_tensors() or inputs.tensors()
    sizes = [tensor.size(dim) for tensor in found.values() if tensor.dim() > dim]
    return max(sizes, key=lambda size: (sizes.count(size), -sizes.index(size)), default=0)


class Search:
    """A search for the batch dimensions, by runs of the model on one GPU."""

    def __init__(self, mode: Comparison) -> None:
        self.run, self.agree, self.inputs = mode.evaluate, mode.same, mode.inputs
        self._outputs_of = mode.outputs_of
        self.gpus, self.dim = len(mode.ids), mode.subject.dim
        self.outputs, self.whole = mode.one.outputs, mode.one.tensors
        self.batch = batch_of(self.inputs, self.dim)
        self._usual = partial(_cut, self.inputs, _axes_along_rows(self.inputs, self.batch, self.dim))

    def layout(self, numbers: bool = False) -> Layout | None:
        """Return the layout nearest to DataParallel's under which pieces give the rows of ``whole``, or None.

        numbers   whether outputs that are all single numbers may be the sum or mean of the pieces' numbers.
        """
        # Try lists of rows first: a dimension of their items may look like a batch, such as three channels.
        if listed := self._list_layout():
            return listed
        began = monotonic()
        numbers = numbers and bool(self.whole) and all(map(is_number, self.whole.values()))
        for batch, axes in _candidates(self.inputs, self.dim):
            if monotonic() - began > _SECONDS:
                return None
            cut = partial(_cut, self.inputs, axes)
            if numbers:
                usual = all(axis == self.dim for axis in axes.values())
                outputs = None if usual else self._reduce_numbers(batch, cut)
            else:
                outputs = self._find_output_axes(batch, cut)
            if outputs and not self._leaves_rows_whole(axes, outputs):
                return Layout(batch, axes, outputs)
        return None

    def _leaves_rows_whole(self, axes: Axes, outputs: Axes) -> bool:
        """Return whether an input and an output that DataParallel would cut stay whole.

        Such a layout proves nothing: a model that merely fails with fewer rows passes it too.
        """
        size = (self.batch,)

        def rows(found: dict[str, Tensor]) -> list[str]:
            return [path for path, tensor in found.items() if tensor.shape[self.dim : self.dim + 1] == size]

        kept = any(axes.get(path) != self.dim for path in rows(self.inputs.scattered_tensors()))
        return kept and any(outputs[path] is WHOLE for path in rows(self.whole))

    def _reduce_numbers(self, batch: int, cut: Callable[[Piece], ModelInputs]) -> Axes | None:
        """Return the axes of outputs that are all numbers, if each is the mean or sum of the pieces' numbers."""
        pieces = split(batch, self.gpus).pieces
        found = [result for _, result in self._results(pieces, cut)]
        if not found:
            return None
        rows = torch.tensor([piece.rows for piece in pieces]).double()
        for path, one in self.whole.items():
            parts = torch.stack([result[path].double().reshape(()).cpu() for result in found])
            ways = parts.sum(), (parts * rows).sum() / batch
            if not any(self.agree(one, way.to(one).reshape(one.shape)) for way in ways):
                return None
            if all(self.agree(one, result[path]) for result in found):
                return None  # every piece gives the whole number: the cut changes nothing
        return dict.fromkeys(self.whole, WHOLE)

    def fits(self) -> dict[str, Fit]:
        """Return the fit of each output with inputs cut as DataParallel does; an empty dict if a piece fails.

        Inputs whose number of rows differs from the batch's stay whole.
        """
        results = self._results(split(self.batch, self.gpus).pieces[:_PIECES], self._usual)
        fits = {}
        for path, whole in self.whole.items() if results else ():
            fits[path] = self._find_fit(whole, [(found[path], piece) for piece, found in results], self.batch)
        return fits

    def piece_refused(self) -> bool:
        """Return whether the model fails with a piece of the batch on one GPU too."""
        for piece in split(self.batch, self.gpus).pieces[:_PIECES]:
            try:
                self.run(self._usual(piece))
            except Exception:
                return True
        return False

    def _results(
        self, pieces: Sequence[Piece], cut: Callable[[Piece], ModelInputs]
    ) -> list[tuple[Piece, dict[str, Tensor]]]:
        """Run the model on each piece and return (piece, outputs by path); an empty list if the model fails."""
        results = []
        for piece in pieces:
            found = self._outputs_of(partial(cut, piece))
            if found is None:
                return []
            results.append((piece, found))
        return results

    def _find_output_axes(self, batch: int, cut: Callable[[Piece], ModelInputs]) -> Axes | None:
        """Return for each output the dimension along which pieces give slices of ``whole``; None if one has none."""
        pieces = split(batch, self.gpus).pieces
        # Compare the first and the last piece only: they differ most, and two runs are quick.
        agreed: dict[str, set[int | None]] = {}
        for piece in dict.fromkeys((pieces[0], pieces[-1])):
            if (found := self._outputs_of(partial(cut, piece))) is None:
                return None
            for path, whole in self.whole.items():
                fitting = self._fitting_axes(found[path], whole, piece, batch)
                agreed[path] = agreed.get(path, fitting) & fitting
            if not all(agreed.values()):
                return None
        axes = {path: min(found, key=self._nearest) for path, found in agreed.items()}
        return axes if any(axis is not None for axis in axes.values()) else None

    def _nearest(self, axis: int | None) -> tuple[bool, bool, int]:
        """Return a sort key: the dimension that DataParallel cuts, then the others, then WHOLE."""
        return axis is None, axis != self.dim, axis or 0

    def _find_fit(self, whole: Tensor, found: list[tuple[Tensor, Piece]], batch: int) -> Fit:
        axes = set.intersection(*(self._fitting_axes(result, whole, piece, batch) for result, piece in found))
        if axes - {WHOLE}:
            return Fit(min(axes, key=self._nearest))
        if all(self._is_shorter_slice(whole, result, piece, batch) for result, piece in found):
            return Fit(None, "short")
        if all(self._is_block(whole, result, piece, batch) for result, piece in found):
            return Fit(None, "pairs")
        if WHOLE in axes:
            return Fit(None, "uncut")
        over_rows = whole.dim() > 0 and all(result.shape == whole.shape for result, _ in found)
        return Fit(None, "over_rows" if over_rows else "")

    def _is_shorter_slice(self, whole: Tensor, result: Tensor, piece: Piece, batch: int) -> bool:
        """Return whether ``result`` is the piece's slice of ``whole``, shortened at the end of other dimensions."""
        if whole.dim() <= self.dim or result.dim() != whole.dim():
            return False
        if whole.size(self.dim) != batch or result.size(self.dim) != piece.rows:
            return False
        wanted = whole.narrow(self.dim, piece.start, piece.rows)[tuple(map(slice, result.shape))]
        return wanted.shape == result.shape and self.agree(wanted, result)

    def _is_block(self, whole: Tensor, result: Tensor, piece: Piece, batch: int) -> bool:
        """Return whether ``result`` is the block of ``whole`` with the piece's rows in both batch dimensions."""
        axes = [axis for axis, size in enumerate(whole.shape) if size == batch]
        if len(axes) != 2:
            return False
        for axis in axes:
            whole = whole.narrow(axis, piece.start, piece.rows)
        return whole.shape == result.shape and self.agree(whole, result)

    def _fitting_axes(self, result: Tensor, whole: Tensor, piece: Piece, batch: int) -> set[int | None]:
        """Return the dimensions along which ``result`` is the piece's slice of ``whole``; WHOLE if they are equal."""
        found: set[int | None] = set()
        if result.shape == whole.shape and self.agree(whole, result):
            found.add(WHOLE)
        if result.dim() == whole.dim():
            for axis, size in enumerate(whole.shape):
                if size == batch and result.size(axis) == piece.rows:
                    wanted = whole.narrow(axis, piece.start, piece.rows)
                    if wanted.shape == result.shape and self.agree(wanted, result):
                        found.add(axis)
        return found

    def _list_layout(self) -> Layout | None:
        """Return a layout with a list whose items are the rows, such as images of different sizes."""
        for at, value in enumerate(self.inputs.args):
            if not isinstance(value, (list, tuple)) or len(value) < 2:
                continue
            if not all(tensors(item, dataclasses=False) for item in value):
                continue
            rows, cut = len(value), partial(_cut_list, self.inputs, at)
            if isinstance(self.outputs, (list, tuple)) and len(self.outputs) == rows:
                if self._list_matches(cut, rows):
                    return Layout(rows, {}, {}, (input_name(at),))
            elif outputs := self._find_output_axes(rows, cut):
                return Layout(rows, {}, outputs, (input_name(at),))
        return None

    def _list_matches(self, cut: Callable[[Piece], ModelInputs], rows: int) -> bool:
        """Return whether the last piece of a list gives the last items of the output list."""
        piece = split(rows, self.gpus).pieces[-1]
        try:
            result = self.run(cut(piece))
        except Exception:
            return False
        wanted = tensors(list(self.outputs[piece.start : piece.stop]))
        found = tensors(list(result)) if isinstance(result, (list, tuple)) else {}
        return wanted.keys() == found.keys() and all(self.agree(wanted[path], found[path]) for path in wanted)


def _cut(inputs: ModelInputs, axes: Axes, piece: Piece) -> ModelInputs:
    """Return the inputs of one piece; inputs without an axis in ``axes`` stay whole."""

    def narrow(path: str, tensor: Tensor) -> Tensor:
        axis = axes.get(path)
        return tensor if axis is None else tensor.narrow(axis, piece.start, piece.rows)

    return inputs.replace_tensors(narrow)


def _cut_list(inputs: ModelInputs, at: int, piece: Piece) -> ModelInputs:
    """Return the inputs of one piece, if the rows are the items of the list at position ``at``."""
    items = inputs.args[at]
    cut = _cut(inputs, _axes_along_rows(inputs, len(items)), piece)
    return replace(cut, args=(*cut.args[:at], items[piece.start : piece.stop], *cut.args[at + 1 :]))


def _axes_along_rows(inputs: ModelInputs, batch: int, dim: int = 0) -> Axes:
    """Return ``dim`` as the axis of every input with ``batch`` rows there, and WHOLE for the others."""
    found = inputs.scattered_tensors()
    return {path: dim if tensor.shape[dim : dim + 1] == (batch,) else WHOLE for path, tensor in found.items()}


def _candidates(inputs: ModelInputs, dim: int) -> Iterator[tuple[int, Axes]]:
    """Yield (batch size, axes of the inputs) to try, the nearest to DataParallel's first."""
    found = inputs.scattered_tensors()
    first = next(iter(found.values()), None)
    usual = batch_of(inputs, dim)
    others = [size for size in (first.shape if first is not None else ()) if size != usual]
    batches = [batch for batch in dict.fromkeys([usual, *others]) if batch > 1]
    for batch in batches:
        # For each tensor: the dimension DataParallel cuts, other dimensions of the batch's size, then WHOLE.
        sized = (
            [axis for axis, size in enumerate(tensor.shape) if size == batch] for tensor in found.values()
        )
        choices = [[*sorted(axes, key=lambda axis: axis != dim), WHOLE] for axes in sized]
        for axes in islice(_nearest_first(choices, (dim, int(not dim))), _MOST // len(batches)):
            if any(axis is not None for axis in axes):
                yield batch, dict(zip(found, axes, strict=True))


def _nearest_first(
    choices: list[list[int | None]], dims: tuple[int, int]
) -> Iterator[tuple[int | None, ...]]:
    """Yield every combination once, those with the fewest changes to DataParallel's cut first.

    Start with the combinations in which all tensors have their batch in the same dimension.
    """
    same = [tuple(axis if axis in options else options[0] for options in choices) for axis in dims]
    yield from same
    fixed = [options[0] for options in choices]
    # Change the last inputs first: the first one most likely holds the batch in the usual dimension.
    free = [at for at, options in reversed(list(enumerate(choices))) if len(options) > 1]
    for changed in range(len(free) + 1):
        for places in combinations(free, changed):
            for picked in product(*(choices[at][1:] for at in places)):
                axes = list(fixed)
                for at, axis in zip(places, picked, strict=True):
                    axes[at] = axis
                if tuple(axes) not in same:
                    yield tuple(axes)
