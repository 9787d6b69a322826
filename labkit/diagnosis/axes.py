"""Where the batch really is: found by running the model on pieces and looking for them in the whole result.

DataParallel cuts every input tensor along one dimension and glues every output along it. If the model gives
other results then, this module searches for a way to cut that does give the same ones: an input along
another dimension, an input not cut at all, an output glued along another dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations, islice, product
from time import monotonic

from torch import Tensor

from ..plans.split import split
from .compare import same
from .structure import Call, mapped, tensors

# More combinations than this are not tried: models with that many tensor inputs are rare.
_MOST = 40
# Nor is a slow model run for ever: a search that has found nothing ends after so many seconds.
_SECONDS = 60
# And no more pieces than this are looked at.
_PIECES = 8
WHOLE = None  # an input that every replica needs whole

Agree = Callable[[Tensor, Tensor], bool]


@dataclass(frozen=True)
class Layout:
    """A way to cut that gives the right results.

    batch     the number of rows.
    inputs    for each tensor the dimension that holds the batch, or WHOLE.
    outputs   the same for each output tensor.
    lists     input lists of which each item is a row: they are to be cut as lists.
    """

    batch: int
    inputs: dict[str, int | None]
    outputs: dict[str, int | None]
    lists: tuple[str, ...] = ()


def find_layout(
    run: Callable[[Call], object], call: Call, whole, gpus: int, agree: Agree = same
) -> Layout | None:
    """The layout nearest to what DataParallel does, under which pieces give the rows of ``whole``.

    run     the model on one device, the same for the same inputs.
    whole   what it gives for ``call``.
    agree   whether two tensors are the same up to rounding.
    """
    # Where each item of a list is a row, its own dimensions may look like a batch too: three channels, say.
    if listed := _list_layout(run, call, whole, gpus, agree):
        return listed
    began = monotonic()
    for batch, axes in _candidates(call):
        if monotonic() - began > _SECONDS:
            return None
        outputs = _outputs(
            run, whole, batch, gpus, lambda start, stop, axes=axes: _cut(call, axes, start, stop), agree
        )
        if outputs:
            return Layout(batch, axes, outputs)
    return None


@dataclass(frozen=True)
class Fit:
    """How one output of the pieces lies in that of the whole batch.

    axis       the dimension in which it lies there; None if it does not.
    over_rows  its shape does not depend on the number of rows: it is computed over them.
    short      it lies in dimension 0, cut off in another one: each piece has its own length there.
    """

    axis: int | None
    over_rows: bool = False
    short: bool = False


def fit_outputs(
    run: Callable[[Call], object], call: Call, whole, gpus: int, agree: Agree = same
) -> dict[str, Fit] | None:
    """Each output by itself, if the inputs are cut as DataParallel cuts them; None if the model fails on a piece.

    Inputs with another number of rows than the batch are given whole.
    """
    batch, expected = batch_of(call), tensors(whole, "output")
    axes = {
        path: 0 if tensor.dim() and tensor.size(0) == batch else WHOLE
        for path, tensor in call.tensors().items()
    }
    seen: dict[str, list] = {path: [] for path in expected}
    for piece in [piece for piece in split(batch, gpus).pieces if piece.stop > piece.start][:_PIECES]:
        try:
            results = tensors(run(_cut(call, axes, piece.start, piece.stop)), "output")
        except Exception:
            return None
        if results.keys() != expected.keys():
            return None
        for path, result in results.items():
            seen[path].append((result, piece.start, piece.stop))
    return {path: _fit(expected[path], found, batch, agree) for path, found in seen.items() if found}


def _fit(whole: Tensor, found: list, batch: int, agree: Agree) -> Fit:
    axes = set.intersection(
        *(_fitting(result, whole, start, stop, batch, agree) - {WHOLE} for result, start, stop in found)
    )
    if axes:
        return Fit(min(axes))
    if all(_begins(whole, result, start, stop, batch, agree) for result, start, stop in found):
        return Fit(None, short=True)
    return Fit(None, over_rows=whole.dim() > 0 and all(result.shape == whole.shape for result, *_ in found))


def _begins(whole: Tensor, result: Tensor, start: int, stop: int, batch: int, agree: Agree) -> bool:
    """Whether ``result`` is the beginning of its rows of ``whole``, in every dimension."""
    if (
        result.dim() != whole.dim()
        or not whole.dim()
        or whole.size(0) != batch
        or result.size(0) != stop - start
    ):
        return False
    wanted = whole.narrow(0, start, stop - start)
    for axis, size in enumerate(result.shape[1:], 1):
        if size > wanted.size(axis):
            return False
        wanted = wanted.narrow(axis, 0, size)
    return agree(wanted, result)


def batch_of(call: Call) -> int:
    """How many rows the call has by DataParallel's reckoning: the size most tensors have in dimension 0."""
    sizes = [tensor.size(0) for tensor in call.tensors().values() if tensor.dim()]
    return max(sizes, key=lambda size: (sizes.count(size), -sizes.index(size)), default=0)


def _candidates(call: Call) -> Iterator[tuple[int, dict[str, int | None]]]:
    """Batch sizes with, for each input tensor, the dimension to cut; the nearest to DataParallel's first."""
    found = call.tensors()
    first = next(iter(found.values()), None)
    usual = batch_of(call)
    others = [size for size in (first.shape if first is not None else ()) if size != usual]
    batches = [batch for batch in dict.fromkeys([usual, *others]) if batch > 1]
    for batch in batches:
        # Of each tensor first what DataParallel does, then the other dimensions of that size, then the whole.
        choices = [
            [*(axis for axis, size in enumerate(tensor.shape) if size == batch), WHOLE]
            for tensor in found.values()
        ]
        for axes in islice(_nearest_first(choices), _MOST // len(batches)):
            if any(axis is not None for axis in axes):
                yield batch, dict(zip(found, axes, strict=True))


def _nearest_first(choices: list[list[int | None]]) -> Iterator[tuple[int | None, ...]]:
    """Every choice once, those with the fewest tensors that DataParallel would have to treat otherwise first.

    Before the many mixtures come those where all tensors have their batch in one dimension.
    """
    yield from (same := [tuple(_at(options, axis) for options in choices) for axis in (0, 1)])
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


def _at(options: list[int | None], axis: int) -> int | None:
    return axis if axis in options else options[0]


def _cut(call: Call, axes: dict[str, int | None], start: int, stop: int) -> Call:
    def piece(path: str, tensor: Tensor) -> Tensor:
        axis = axes[path]
        return tensor if axis is None else tensor.narrow(axis, start, stop - start)

    return call.mapped(piece)


def _outputs(run, whole, batch: int, gpus: int, cut, agree: Agree) -> dict[str, int | None] | None:
    """The dimension of each output in which the pieces' results lie in ``whole``; None if they do not."""
    pieces = split(batch, gpus).pieces
    # The first and the last: they are the most unlike, and two runs are quick.
    chosen = {piece.start: piece for piece in (pieces[0], pieces[-1])}.values()
    expected = tensors(whole, "output")
    agreed: dict[str, set] | None = None
    for piece in chosen:
        try:
            results = tensors(run(cut(piece.start, piece.stop)), "output")
        except Exception:
            return None  # the model refuses such pieces
        if results.keys() != expected.keys():
            return None
        fits = {
            path: _fitting(results[path], expected[path], piece.start, piece.stop, batch, agree)
            for path in expected
        }
        agreed = fits if agreed is None else {path: agreed[path] & fits[path] for path in expected}
        if not all(agreed.values()):
            return None
    chosen_axes = {
        path: min(axes, key=lambda axis: (axis is None, axis or 0)) for path, axes in agreed.items()
    }
    return chosen_axes if any(axis is not None for axis in chosen_axes.values()) else None


def _fitting(
    result: Tensor, whole: Tensor, start: int, stop: int, batch: int, agree: Agree
) -> set[int | None]:
    found: set[int | None] = set()
    if result.shape == whole.shape and agree(whole, result):
        found.add(WHOLE)
    if result.dim() == whole.dim():
        for axis, size in enumerate(whole.shape):
            if size == batch and result.size(axis) == stop - start:
                wanted = whole.narrow(axis, start, stop - start)
                if wanted.shape == result.shape and agree(wanted, result):
                    found.add(axis)
    return found


def _list_layout(run, call: Call, whole, gpus: int, agree: Agree) -> Layout | None:
    """A list whose items are the rows, such as images of different sizes."""
    for at, value in enumerate(call.inputs):
        if not (
            isinstance(value, (list, tuple)) and len(value) > 1 and all(isinstance(v, Tensor) for v in value)
        ):
            continue
        rows = len(value)

        def cut(start, stop, at=at, value=value, rows=rows):
            def piece(path, tensor):
                return tensor[start:stop] if tensor.dim() and tensor.size(0) == rows else tensor

            inputs = [
                mapped(other, f"input {k}", piece) if k != at else value[start:stop]
                for k, other in enumerate(call.inputs)
            ]
            return Call(tuple(inputs), call.kwargs)

        if isinstance(whole, (list, tuple)) and len(whole) == rows:
            if _list_matches(run, whole, cut, rows, gpus, agree):
                return Layout(rows, {}, {}, (f"input {at}",))
        elif outputs := _outputs(run, whole, rows, gpus, cut, agree):
            return Layout(rows, {}, outputs, (f"input {at}",))
    return None


def _list_matches(run, whole, cut, rows: int, gpus: int, agree: Agree) -> bool:
    piece = split(rows, gpus).pieces[-1]
    try:
        result = run(cut(piece.start, piece.stop))
    except Exception:
        return False
    wanted = tensors(list(whole[piece.start : piece.stop]), "output")
    found = tensors(list(result), "output") if isinstance(result, (list, tuple)) else {}
    return wanted.keys() == found.keys() and all(agree(wanted[path], found[path]) for path in wanted)
