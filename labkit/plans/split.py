"""Split a batch over GPUs: integers alone.

The rule is that of :func:`torch.chunk`, which ``torch.nn.DataParallel`` uses: with ``batch`` rows on ``gpus`` GPUs a
piece has ``ceil(batch / gpus)`` rows. Pieces are handed out in order until the rows run out, so the last piece may be
short, and the GPUs after it stay idle.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..base.display import Drawn
from ..base.language import say, series
from ..base.numbers import MOST_GPUS, integer, plural

# The longest list written out.
_LONG = 10


@dataclass(frozen=True)
class Piece:
    """The rows ``start`` (included) to ``stop`` (excluded) of a batch, on one GPU."""

    gpu: int
    start: int
    stop: int

    @property
    def rows(self) -> int:
        """The number of rows."""
        return self.stop - self.start

    def __str__(self) -> str:
        first, last = self.start, self.stop - 1
        if not self.rows:
            return f"cuda:{self.gpu} " + say(en="no rows", zh="没有行")
        return f"cuda:{self.gpu} " + say(en=f"rows {first}..{last}", zh=f"第 {first}–{last} 行")


@dataclass(frozen=True)
class Split(Drawn):
    """The split of ``batch`` rows over ``gpus`` GPUs: a :class:`Piece` for each GPU with work."""

    batch: int
    gpus: int
    pieces: tuple[Piece, ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        """The rows of each piece, as ``torch.chunk`` cuts them."""
        return tuple(piece.rows for piece in self.pieces)

    @property
    def rows_by_gpu(self) -> tuple[int, ...]:
        """The rows of each GPU; 0 for an idle one."""
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
        """Return the GPU of row ``row`` (0 ≤ row < batch)."""
        row = integer("row", row, 0, self.batch - 1)
        return row // self.chunk

    @property
    def sizes_text(self) -> str:
        """The sizes as text."""
        short = self.short
        return sizes_text(self.chunk, len(self.pieces) - (short is not None), short.rows if short else None)

    listed = sizes_text  # the former name

    def __repr__(self) -> str:
        idle = [f"cuda:{gpu}" for gpu in self.idle]
        few = len(idle) <= _LONG
        named = series(idle) if few else say(en=f"{idle[0]} to {idle[-1]}", zh=f"{idle[0]} 到 {idle[-1]}")
        return say(
            en=f"{self.batch} rows on {plural(self.gpus, 'GPU')}: {self.sizes_text}"
            + (f"; idle: {named}" if idle else ""),
            zh=f"{self.batch} 行分给 {self.gpus} 块 GPU：{self.sizes_text}"
            + (f"；空闲：{named}" if idle else ""),
        )


def split(batch: int, gpus: int) -> Split:
    """Plan how ``batch`` rows (≥ 0) are cut over ``gpus`` GPUs (≥ 1).

    >>> split(10, 8)
    10 rows on 8 GPUs: 2, 2, 2, 2, 2; idle: cuda:5, cuda:6, cuda:7

    No rows give every GPU an empty piece, as ``torch.chunk`` does.

    Raises TypeError if an argument is no whole number, ValueError if it is out of range.
    """
    batch = integer("batch", batch, 0)
    gpus = integer("gpus", gpus, 1, MOST_GPUS)
    if not batch:
        return Split(0, gpus, tuple(Piece(gpu, 0, 0) for gpu in range(gpus)))
    chunk = -(-batch // gpus)
    starts = range(0, batch, chunk)
    return Split(batch, gpus, tuple(Piece(gpu, at, min(at + chunk, batch)) for gpu, at in enumerate(starts)))


def sizes_text(size: int, times: int, last: int | None) -> str:
    """Format ``times`` equal sizes and a last one: ``30, 30, 30, 10``; a long list as ``33 × 3, 1``."""
    end = [] if last is None else [last]
    if times + len(end) <= _LONG:
        return series([size] * times + end) or say(en="none", zh="没有")
    return series([f"{times} × {size}", *end])
