"""Who gets which rows: the split of a batch over GPUs, from integers alone.

The rule is that of :func:`torch.chunk`, which ``torch.nn.DataParallel`` uses: with ``batch`` rows on
``gpus`` GPUs a piece has ``ceil(batch / gpus)`` rows, pieces are handed out in order until the rows run
out, so the last piece may be short and the GPUs after it stay idle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..base.display import Drawn
from ..base.numbers import MOST_GPUS, whole


@dataclass(frozen=True)
class Piece:
    """The rows ``start`` (included) to ``stop`` (excluded) of a batch, on one GPU."""

    gpu: int
    start: int
    stop: int

    @property
    def rows(self) -> int:
        """How many rows the piece has."""
        return self.stop - self.start

    def __str__(self) -> str:
        rows = f"rows {self.start}..{self.stop - 1}" if self.rows else "no rows"
        return f"cuda:{self.gpu} {rows}"


@dataclass(frozen=True)
class Split(Drawn):
    """How ``batch`` rows fall on ``gpus`` GPUs: one :class:`Piece` per GPU that gets work."""

    batch: int
    gpus: int
    pieces: tuple[Piece, ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Rows per piece, as ``torch.chunk`` would cut them."""
        return tuple(piece.rows for piece in self.pieces)

    @property
    def rows_by_gpu(self) -> tuple[int, ...]:
        """Rows per GPU, one entry for each GPU, 0 where it is idle."""
        return self.sizes + (0,) * (self.gpus - len(self.pieces))

    @property
    def chunk(self) -> int:
        """Rows in a full piece: ``ceil(batch / gpus)``."""
        return -(-self.batch // self.gpus)

    @property
    def idle(self) -> tuple[int, ...]:
        """GPUs that get no rows."""
        return tuple(gpu for gpu, rows in enumerate(self.rows_by_gpu) if not rows)

    @property
    def short(self) -> Piece | None:
        """The last piece, if it has fewer rows than the others."""
        last = self.pieces[-1]
        return last if last.rows < self.chunk else None

    def gpu_of(self, row: int) -> int:
        """The GPU that gets row ``row`` (0 ≤ row < batch)."""
        row = whole("row", row, 0, self.batch - 1)
        return row // self.chunk

    def __str__(self) -> str:
        pieces = ", ".join(str(size) for size in self.sizes)
        idle = f"; idle: {', '.join(f'cuda:{gpu}' for gpu in self.idle)}" if self.idle else ""
        return f"{self.batch} rows on {self.gpus} GPU{'s' * (self.gpus != 1)}: {pieces}{idle}"

    __repr__ = __str__


def split(batch: int, gpus: int) -> Split:
    """Plan how ``batch`` rows (≥ 0) are cut over ``gpus`` GPUs (≥ 1).

    >>> split(10, 8)
    10 rows on 8 GPUs: 2, 2, 2, 2, 2; idle: cuda:5, cuda:6, cuda:7

    No rows give every GPU an empty piece, as ``torch.chunk`` does.

    Raises TypeError if an argument is no whole number, ValueError if it is out of range.
    """
    batch = whole("batch", batch, 0)
    gpus = whole("gpus", gpus, 1, MOST_GPUS)
    if not batch:
        return Split(0, gpus, tuple(Piece(gpu, 0, 0) for gpu in range(gpus)))
    chunk = -(-batch // gpus)
    starts = range(0, batch, chunk)
    return Split(batch, gpus, tuple(Piece(gpu, at, min(at + chunk, batch)) for gpu, at in enumerate(starts)))


@dataclass(frozen=True)
class Batches(Drawn):
    """One pass over ``rows`` rows in batches of ``batch_size``, each batch split over ``gpus`` GPUs."""

    rows: int
    batch_size: int
    gpus: int
    drop_last: bool
    splits: tuple[Split, ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Rows per batch, as a ``torch.utils.data.DataLoader`` hands them out."""
        return tuple(split.batch for split in self.splits)

    @property
    def dropped(self) -> int:
        """Rows that no batch holds, because ``drop_last`` leaves the short batch out."""
        return self.rows - sum(self.sizes)

    def __str__(self) -> str:
        dropped = f"; {self.dropped} dropped" if self.dropped else ""
        return (
            f"{self.rows} rows in batches of {self.batch_size}: {_runs(self.sizes)}{dropped}"
            + f" (on {self.gpus} GPUs)" * (self.gpus > 1)
        )

    __repr__ = __str__


def batches(rows: int, batch_size: int, *, gpus: int = 1, drop_last: bool = False) -> Batches:
    """Plan one pass over ``rows`` rows (≥ 0) in batches of ``batch_size`` (≥ 1), each split over ``gpus`` GPUs.

    >>> batches(100, 30)
    100 rows in batches of 30: 30, 30, 30, 10

    Raises TypeError if an argument is no whole number, ValueError if it is out of range.
    """
    rows, batch_size = whole("rows", rows, 0), whole("batch_size", batch_size, 1)
    gpus = whole("gpus", gpus, 1, MOST_GPUS)
    full, short = divmod(rows, batch_size)
    splits = (split(batch_size, gpus),) * full
    if short and not drop_last:
        splits += (split(short, gpus),)
    return Batches(rows, batch_size, gpus, bool(drop_last), splits)


Shape = tuple[int, ...]


def cut_shape(shape: Shape, gpus: int, dim: int = 0) -> tuple[Shape, ...]:
    """The shapes of the pieces of a tensor that is cut over ``gpus`` GPUs along dimension ``dim``.

    >>> cut_shape((32, 512, 65), 2)
    ((16, 512, 65), (16, 512, 65))

    Raises ValueError if the tensor has no such dimension; a negative ``dim`` counts from the end.
    """
    shape = tuple(whole("shape", size, 0) for size in shape)
    dim = _dimension("dim", dim, len(shape))
    return tuple((*shape[:dim], rows, *shape[dim + 1 :]) for rows in split(shape[dim], gpus).sizes)


def gathered_shape(shapes: Sequence[Shape], dim: int = 0) -> Shape:
    """The shape of what gather makes of tensors of these shapes, glued along dimension ``dim``.

    >>> gathered_shape([(65, 16, 5530), (65, 16, 5530)])
    (130, 16, 5530)

    Scalars become one vector. Raises ValueError, naming the piece, if the shapes differ in any other dimension
    than ``dim``: gather fails there too.
    """
    shapes = [tuple(whole("shapes", size, 0) for size in shape) for shape in shapes]
    if not shapes:
        raise ValueError("shapes must name at least one piece, got none")
    if all(shape == () for shape in shapes):
        return (len(shapes),)
    dim = _dimension("dim", dim, len(shapes[0]))
    for at, shape in enumerate(shapes):
        if len(shape) != len(shapes[0]) or any(
            one != other
            for axis, (one, other) in enumerate(zip(shape, shapes[0], strict=True))
            if axis != dim
        ):
            raise ValueError(
                f"pieces cannot be glued along dimension {dim}: piece 0 is {list(shapes[0])}, "
                f"piece {at} is {list(shape)}; all other dimensions must be equal"
            )
    return (*shapes[0][:dim], sum(shape[dim] for shape in shapes), *shapes[0][dim + 1 :])


def _dimension(name: str, dim: int, dims: int) -> int:
    """``dim`` counted from the front, or an error that names it."""
    if not dims:
        raise ValueError(f"{name} names a dimension, but a scalar has none")
    return whole(name, dim, -dims, dims - 1) % dims


def _runs(sizes: tuple[int, ...]) -> str:
    """``30, 30, 30, 10``; long lists as ``33 × 3, 1``."""
    if len(sizes) <= 10:
        return ", ".join(map(str, sizes)) or "none"
    full = sum(size == sizes[0] for size in sizes)
    return f"{full} × {sizes[0]}" + (f", {sizes[-1]}" if full < len(sizes) else "")
