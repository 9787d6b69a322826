"""Where the batch really is: found by running the model on pieces and looking for them in the whole result.

DataParallel cuts every input tensor along one dimension and glues every output along it. If the model gives
other results then, this module searches for a way to cut that does give the same ones: an input along
another dimension, an input not cut at all, an output glued along another dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations, islice, product
from time import monotonic

import torch
from torch import Tensor

from labkit.base.tree import input_name, output_name, tensors
from labkit.plans.split import Piece, split

from .comparison import Comparison
from .inputs import ModelInputs
from .rounding import is_number

# More combinations than this are not tried: models with that many tensor inputs are rare.
_MOST = 40
# Nor is a slow model run for ever: a search that has found nothing ends after so many seconds.
_SECONDS = 60
# And no more pieces than this are looked at.
_PIECES = 8
WHOLE = None  # an input that every replica needs whole

# By the way to each tensor, the dimension that holds its batch, or WHOLE.
Axes = dict[str, int | None]


@dataclass(frozen=True)
class Layout:
    """A way to cut that gives the right results.

    batch     the number of rows.
    inputs    for each tensor that DataParallel cuts, the dimension that holds the batch, or WHOLE.
    outputs   the same for each output tensor.
    lists     input lists of which each item is a row: they are to be cut as lists.
    """

    batch: int
    inputs: Axes
    outputs: Axes
    lists: tuple[str, ...] = ()


@dataclass(frozen=True)
class Fit:
    """Where the pieces' results lie in the whole batch's result, for one output.

    axis   the dimension of the whole result in which the rows lie; None if they do not.
    how    how they lie if there is no such dimension, "" if it cannot be told:
           "over_rows": the shape does not depend on the number of rows, the result is computed over them;
           "uncut": every piece gives the whole result, which does not come from what is cut;
           "short": they lie in the dimension that is cut, and each piece has its own length in another one;
           "pairs": the result has two dimensions of the batch, and a piece gives what its rows have in both.
    """

    axis: int | None
    how: str = ""


class _Refused(Exception):
    """The model fails with a piece, or returns a different structure for it."""


def batch_of(inputs: ModelInputs, dim: int = 0) -> int:
    """Return the number of rows as DataParallel counts them: the size that most tensors have in dimension ``dim``."""
    found = inputs.scattered_tensors() or inputs.tensors()
    sizes = [tensor.size(dim) for tensor in found.values() if tensor.dim() > dim]
    return max(sizes, key=lambda size: (sizes.count(size), -sizes.index(size)), default=0)


class Search:
    """A search for the dimensions of the batch, by runs of the model on one GPU."""

    def __init__(self, mode: Comparison) -> None:
        self.run, self.agree, self.inputs = mode.evaluate, mode.same, mode.inputs
        self.gpus, self.dim = len(mode.ids), mode.subject.dim
        self.outputs, self.whole = mode.one.outputs, mode.one.tensors
        self.batch = batch_of(self.inputs, self.dim)
        self._usual = partial(_cut, self.inputs, _axes_along_rows(self.inputs, self.batch, self.dim))

    def layout(self, numbers: bool = False) -> Layout | None:
        """Return the layout nearest to DataParallel's under which pieces give the rows of ``whole``, or None.

        numbers   whether outputs that are all numbers may be put together from those of the pieces.
        """
        # Where each item of a list is a row, its own dimensions may look like a batch too: three channels, say.
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
                outputs = None if usual else self._numbers(batch, cut)
            else:
                outputs = self._lying(batch, cut)
            if outputs and not self._leaves_rows(axes, outputs):
                return Layout(batch, axes, outputs)
        return None

    def _leaves_rows(self, axes: Axes, outputs: Axes) -> bool:
        """Whether rows that DataParallel would cut get through whole: what merely refuses some of them, does so too."""
        size = (self.batch,)

        def rows(found: dict[str, Tensor]) -> list[str]:
            return [path for path, tensor in found.items() if tensor.shape[self.dim : self.dim + 1] == size]

        kept = any(axes.get(path) != self.dim for path in rows(self.inputs.scattered_tensors()))
        return kept and any(outputs[path] is WHOLE for path in rows(self.whole))

    def _numbers(self, batch: int, cut: Callable[[Piece], ModelInputs]) -> Axes | None:
        """Return the outputs, all of them numbers, if each is the mean or the sum of what the pieces give."""
        pieces = split(batch, self.gpus).pieces
        try:
            found = [result for _, result in self._results(pieces, cut)]
        except _Refused:
            return None
        rows = torch.tensor([piece.rows for piece in pieces]).double()
        for path, one in self.whole.items():
            parts = torch.stack([result[path].double().reshape(()).cpu() for result in found])
            ways = parts.sum(), (parts * rows).sum() / batch
            if not any(self.agree(one, way.to(one).reshape(one.shape)) for way in ways):
                return None
            if all(self.agree(one, result[path]) for result in found):
                return None  # nothing is cut that it comes from
        return dict.fromkeys(self.whole, WHOLE)

    def fits(self) -> dict[str, Fit]:
        """Cut the inputs as DataParallel does and return the fit of each output; none if the model fails on a piece.

        Inputs with another number of rows than the batch are given whole.
        """
        try:
            results = list(self._results(split(self.batch, self.gpus).pieces[:_PIECES], self._usual))
        except _Refused:
            return {}
        fits = {}
        for path, whole in self.whole.items():
            fits[path] = self._fit(whole, [(found[path], piece) for piece, found in results], self.batch)
        return fits

    def piece_refused(self) -> bool:
        """Whether the model fails with a piece of the batch on one device too."""
        for piece in split(self.batch, self.gpus).pieces[:_PIECES]:
            try:
                self.run(self._usual(piece))
            except Exception:
                return True
        return False

    def _results(
        self, pieces: Sequence[Piece], cut: Callable[[Piece], ModelInputs]
    ) -> Iterator[tuple[Piece, dict[str, Tensor]]]:
        """Run the model on each piece and yield its outputs. Raises _Refused if it fails."""
        for piece in pieces:
            try:
                found = tensors(self.run(cut(piece)), output_name())
            except Exception as error:
                raise _Refused from error
            if found.keys() != self.whole.keys():
                raise _Refused
            yield piece, found

    def _lying(self, batch: int, cut: Callable[[Piece], ModelInputs]) -> Axes | None:
        """Return the dimension in which the pieces' results lie in ``whole``, for each output; None if they do not."""
        pieces = split(batch, self.gpus).pieces
        # The first and the last: they are the most unlike, and two runs are quick.
        chosen = list(dict.fromkeys((pieces[0], pieces[-1])))
        agreed: dict[str, set[int | None]] = {}
        try:
            for piece, found in self._results(chosen, cut):
                for path, whole in self.whole.items():
                    fitting = self._fitting(found[path], whole, piece, batch)
                    agreed[path] = agreed.get(path, fitting) & fitting
                if not all(agreed.values()):
                    return None
        except _Refused:
            return None
        axes = {path: min(found, key=self._nearest) for path, found in agreed.items()}
        return axes if any(axis is not None for axis in axes.values()) else None

    def _nearest(self, axis: int | None) -> tuple[bool, bool, int]:
        """The order of dimensions: first that which DataParallel cuts, then the others, last none."""
        return axis is None, axis != self.dim, axis or 0

    def _fit(self, whole: Tensor, found: list[tuple[Tensor, Piece]], batch: int) -> Fit:
        axes = set.intersection(*(self._fitting(result, whole, piece, batch) for result, piece in found))
        if axes - {WHOLE}:
            return Fit(min(axes, key=self._nearest))
        if all(self._begins(whole, result, piece, batch) for result, piece in found):
            return Fit(None, "short")
        if all(self._is_block(whole, result, piece, batch) for result, piece in found):
            return Fit(None, "pairs")
        if WHOLE in axes:
            return Fit(None, "uncut")
        over_rows = whole.dim() > 0 and all(result.shape == whole.shape for result, _ in found)
        return Fit(None, "over_rows" if over_rows else "")

    def _begins(self, whole: Tensor, result: Tensor, piece: Piece, batch: int) -> bool:
        """Whether ``result`` is the beginning of its rows of ``whole``, in every dimension."""
        if whole.dim() <= self.dim or result.dim() != whole.dim():
            return False
        if whole.size(self.dim) != batch or result.size(self.dim) != piece.rows:
            return False
        wanted = whole.narrow(self.dim, piece.start, piece.rows)[tuple(map(slice, result.shape))]
        return wanted.shape == result.shape and self.agree(wanted, result)

    def _is_block(self, whole: Tensor, result: Tensor, piece: Piece, batch: int) -> bool:
        """Whether ``result`` is the part of ``whole`` on the diagonal where both its rows are those of the piece."""
        axes = [axis for axis, size in enumerate(whole.shape) if size == batch]
        if len(axes) != 2:
            return False
        for axis in axes:
            whole = whole.narrow(axis, piece.start, piece.rows)
        return whole.shape == result.shape and self.agree(whole, result)

    def _fitting(self, result: Tensor, whole: Tensor, piece: Piece, batch: int) -> set[int | None]:
        """Return the dimensions of ``whole`` in which ``result`` lies where the rows of the piece are."""
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
        """Look for a list whose items are the rows, such as images of different sizes."""
        for at, value in enumerate(self.inputs.args):
            if not isinstance(value, (list, tuple)) or len(value) < 2:
                continue
            if not all(tensors(item, dataclasses=False) for item in value):
                continue
            rows, cut = len(value), partial(_cut_list, self.inputs, at)
            if isinstance(self.outputs, (list, tuple)) and len(self.outputs) == rows:
                if self._list_matches(cut, rows):
                    return Layout(rows, {}, {}, (input_name(at),))
            elif outputs := self._lying(rows, cut):
                return Layout(rows, {}, outputs, (input_name(at),))
        return None

    def _list_matches(self, cut: Callable[[Piece], ModelInputs], rows: int) -> bool:
        """Whether the last piece of a list gives the last items of a list of outputs."""
        piece = split(rows, self.gpus).pieces[-1]
        try:
            result = self.run(cut(piece))
        except Exception:
            return False
        wanted = tensors(list(self.outputs[piece.start : piece.stop]))
        found = tensors(list(result)) if isinstance(result, (list, tuple)) else {}
        return wanted.keys() == found.keys() and all(self.agree(wanted[path], found[path]) for path in wanted)


def _cut(inputs: ModelInputs, axes: Axes, piece: Piece) -> ModelInputs:
    """Return the inputs of one piece; inputs that ``axes`` does not name stay whole."""

    def narrowed(path: str, tensor: Tensor) -> Tensor:
        axis = axes.get(path)
        return tensor if axis is None else tensor.narrow(axis, piece.start, piece.rows)

    return inputs.replace_tensors(narrowed)


def _cut_list(inputs: ModelInputs, at: int, piece: Piece) -> ModelInputs:
    """Return the inputs of one piece where the rows are the items of the list ``input at``."""
    items = inputs.args[at]
    cut = _cut(inputs, _axes_along_rows(inputs, len(items)), piece)
    return replace(cut, args=(*cut.args[:at], items[piece.start : piece.stop], *cut.args[at + 1 :]))


def _axes_along_rows(inputs: ModelInputs, batch: int, dim: int = 0) -> Axes:
    """Cut along dimension ``dim`` every input that has ``batch`` rows there, and leave the others whole."""
    found = inputs.scattered_tensors()
    return {path: dim if tensor.shape[dim : dim + 1] == (batch,) else WHOLE for path, tensor in found.items()}


def _candidates(inputs: ModelInputs, dim: int) -> Iterator[tuple[int, Axes]]:
    """Yield batch sizes, each with the dimension to cut of each input tensor; the nearest to DataParallel's first."""
    found = inputs.scattered_tensors()
    first = next(iter(found.values()), None)
    usual = batch_of(inputs, dim)
    others = [size for size in (first.shape if first is not None else ()) if size != usual]
    batches = [batch for batch in dict.fromkeys([usual, *others]) if batch > 1]
    for batch in batches:
        # Of each tensor first what DataParallel does, then the other dimensions of that size, then the whole.
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
    """Yield every choice once; first those where DataParallel would have to treat the fewest tensors otherwise.

    Before the many mixtures come those where all tensors have their batch in one dimension.
    """
    same = [tuple(axis if axis in options else options[0] for options in choices) for axis in dims]
    yield from same
    fixed = [options[0] for options in choices]
    # The first input is most likely to hold the batch: the last ones are tried otherwise first.
    free = [at for at, options in reversed(list(enumerate(choices))) if len(options) > 1]
    for changed in range(len(free) + 1):
        for places in combinations(free, changed):
            for picked in product(*(choices[at][1:] for at in places)):
                axes = list(fixed)
                for at, axis in zip(places, picked, strict=True):
                    axes[at] = axis
                if tuple(axes) not in same:
                    yield tuple(axes)
