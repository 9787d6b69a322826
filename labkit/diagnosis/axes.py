"""Where the batch really is: found by running the model on pieces and looking for them in the whole result.

DataParallel cuts every input tensor along one dimension and glues every output along it. If the model gives
other results then, this module searches for a way to cut that does give the same ones: an input along
another dimension, an input not cut at all, an output glued along another dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product

from torch import Tensor

from ..plan import split
from .compare import same
from .structure import Call, mapped, tensors

# More combinations than this are not tried: models with that many tensor inputs are rare.
_MOST = 200
WHOLE = None  # an input that every replica needs whole


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


def find_layout(run: Callable[[Call], object], call: Call, whole, gpus: int) -> Layout | None:
    """The layout nearest to what DataParallel does, under which pieces give the rows of ``whole``.

    run     the model on one device, the same for the same inputs.
    whole   what it gives for ``call``.
    """
    # Where each item of a list is a row, its own dimensions may look like a batch too: three channels, say.
    if listed := _list_layout(run, call, whole, gpus):
        return listed
    for batch, axes in _candidates(call):
        if batch < 2:
            continue
        outputs = _outputs(
            run, whole, batch, gpus, lambda start, stop, axes=axes: _cut(call, axes, start, stop)
        )
        if outputs:
            return Layout(batch, axes, outputs)
    return None


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
    tried = 0
    for batch in dict.fromkeys([usual, *others]):
        choices = []
        for tensor in found.values():
            axes: list[int | None] = [axis for axis, size in enumerate(tensor.shape) if size == batch]
            choices.append([*axes, WHOLE])
        combinations = sorted(
            product(*choices), key=lambda axes: sum(axis is None or axis > 0 for axis in axes)
        )
        for axes in combinations:
            if all(axis is None for axis in axes):
                continue
            tried += 1
            if tried > _MOST:
                return
            yield batch, dict(zip(found, axes, strict=True))


def _cut(call: Call, axes: dict[str, int | None], start: int, stop: int) -> Call:
    def piece(path: str, tensor: Tensor) -> Tensor:
        axis = axes[path]
        return tensor if axis is None else tensor.narrow(axis, start, stop - start)

    return call.mapped(piece)


def _outputs(run, whole, batch: int, gpus: int, cut) -> dict[str, int | None] | None:
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
            path: _fitting(results[path], expected[path], piece.start, piece.stop, batch) for path in expected
        }
        agreed = fits if agreed is None else {path: agreed[path] & fits[path] for path in expected}
        if not all(agreed.values()):
            return None
    chosen_axes = {
        path: min(axes, key=lambda axis: (axis is None, axis or 0)) for path, axes in agreed.items()
    }
    return chosen_axes if any(axis is not None for axis in chosen_axes.values()) else None


def _fitting(result: Tensor, whole: Tensor, start: int, stop: int, batch: int) -> set[int | None]:
    found: set[int | None] = set()
    if result.shape == whole.shape and same(whole, result):
        found.add(WHOLE)
    if result.dim() == whole.dim():
        for axis, size in enumerate(whole.shape):
            if size == batch and result.size(axis) == stop - start:
                wanted = whole.narrow(axis, start, stop - start)
                if wanted.shape == result.shape and same(wanted, result):
                    found.add(axis)
    return found


def _list_layout(run, call: Call, whole, gpus: int) -> Layout | None:
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
            if _list_matches(run, whole, cut, rows, gpus):
                return Layout(rows, {}, {}, (f"input {at}",))
        elif outputs := _outputs(run, whole, rows, gpus, cut):
            return Layout(rows, {}, outputs, (f"input {at}",))
    return None


def _list_matches(run, whole, cut, rows: int, gpus: int) -> bool:
    piece = split(rows, gpus).pieces[-1]
    try:
        result = run(cut(piece.start, piece.stop))
    except Exception:
        return False
    wanted = tensors(list(whole[piece.start : piece.stop]), "output")
    found = tensors(list(result), "output") if isinstance(result, (list, tuple)) else {}
    return wanted.keys() == found.keys() and all(same(wanted[path], found[path]) for path in wanted)
