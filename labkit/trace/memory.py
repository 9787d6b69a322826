"""The memory that ranks' GPUs had in use, moment by moment."""

from __future__ import annotations

from dataclasses import dataclass

from ..base.display import Drawn


@dataclass(frozen=True)
class MemorySample:
    """The bytes that live on a rank's GPU at one moment.

    device   the rank's GPU: ``"cuda:1"``.
    at       seconds on the rank's clock.
    nbytes   the bytes in use now.
    peak     the most that were in use since the sample before; at least ``nbytes``.
    label    the work at that moment: a collective's kind, a module's name. May be "".
    """

    rank: int
    device: str
    at: float
    nbytes: int
    peak: int
    label: str = ""


@dataclass(frozen=True)
class MemoryTimeline(Drawn):
    """Memory in use on each rank's GPU over its clock. In a notebook it shows itself as a picture."""

    samples: tuple[MemorySample, ...]

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that it has samples of."""
        return tuple(sorted({found.rank for found in self.samples}))

    def of(self, rank: int) -> tuple[MemorySample, ...]:
        """The samples of one rank, by its clock."""
        return tuple(sorted((one for one in self.samples if one.rank == rank), key=lambda one: one.at))

    def peak(self, rank: int) -> int:
        """The most bytes that this rank had in use; 0 if it was never looked at."""
        return max((found.peak for found in self.samples if found.rank == rank), default=0)
