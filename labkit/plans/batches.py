"""Plan one pass over the data: batches of rows, each split over GPUs, as a ``DataLoader`` gives them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import overload

from ..base.display import Drawn
from ..base.language import say
from ..base.numbers import MOST_GPUS, integer
from .split import Split, sizes_text, split


@dataclass(frozen=True)
class Batches(Drawn, Sequence[Split]):
    """A pass over ``rows`` rows in batches of ``batch_size``, each split over ``gpus`` GPUs.

    A sequence: ``len(plan)`` batches, of which ``plan[3]`` is the split of the fourth. Batches are not stored,
    because a pass may have a billion; :attr:`kinds` has the different ones.
    """

    rows: int
    batch_size: int
    gpus: int = 1
    drop_last: bool = False

    @property
    def full(self) -> int:
        """The number of full batches."""
        return self.rows // self.batch_size

    @property
    def sizes(self) -> tuple[int, ...]:
        """The rows of each batch, in order."""
        return (self.batch_size,) * self.full + (self.short,) * bool(self.short)

    @property
    def short(self) -> int:
        """Rows of the last batch if it has fewer, else 0."""
        return 0 if self.drop_last else self.rows % self.batch_size

    @property
    def dropped(self) -> int:
        """Rows that no batch holds, because ``drop_last`` leaves the short batch out."""
        return self.rows % self.batch_size - self.short

    @cached_property
    def kinds(self) -> tuple[tuple[Split, int], ...]:
        """The different splits with their numbers of batches: full ones, then the short one."""
        sizes = ((self.batch_size, self.full), (self.short, 1))
        return tuple((split(size, self.gpus), times) for size, times in sizes if size and times)

    @property
    def total(self) -> int:
        """The number of batches, even where ``len`` overflows."""
        return self.full + bool(self.short)

    def __len__(self) -> int:
        return self.total

    @overload
    def __getitem__(self, number: int) -> Split: ...
    @overload
    def __getitem__(self, number: slice) -> tuple[Split, ...]: ...
    def __getitem__(self, number: int | slice) -> Split | tuple[Split, ...]:
        if isinstance(number, slice):
            return tuple(self[at] for at in range(self.total)[number])
        return self.kinds[0 if range(self.total)[number] < self.full else -1][0]

    def __repr__(self) -> str:
        sizes = sizes_text(self.batch_size, self.full, self.short or None)
        return say(
            en=f"{self.rows} rows in batches of {self.batch_size}: {sizes}"
            + (f"; {self.dropped} dropped" if self.dropped else "")
            + (f" (on {self.gpus} GPUs)" if self.gpus > 1 else ""),
            zh=f"{self.rows} 行，每批 {self.batch_size} 行：{sizes}"
            + (f"；丢弃 {self.dropped} 行" if self.dropped else "")
            + (f"（{self.gpus} 块 GPU）" if self.gpus > 1 else ""),
        )


def batches(rows: int, batch_size: int, *, gpus: int = 1, drop_last: bool = False) -> Batches:
    """Plan one pass over ``rows`` rows (≥ 0) in batches of ``batch_size`` (≥ 1), each split over ``gpus`` GPUs.

    >>> batches(100, 30)
    100 rows in batches of 30: 30, 30, 30, 10

    Raises TypeError if an argument is no whole number, ValueError if it is out of range.
    """
    rows, batch_size = integer("rows", rows, 0), integer("batch_size", batch_size, 1)
    return Batches(rows, batch_size, integer("gpus", gpus, 1, MOST_GPUS), bool(drop_last))
