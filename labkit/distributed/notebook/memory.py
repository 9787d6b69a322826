"""The memory of the ranks' GPUs, as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ...base.language import say
from ...base.units import bytes_text, cuda_bytes
from ..rank.rank import Rank
from .tables import table_html, table_text


class RankMemory(NamedTuple):
    """Bytes on one rank's GPU: now, at most, and how many it has."""

    rank: int
    device: str
    now: int
    peak: int
    capacity: int


# Names at the left, numbers at the right.
_SIDES = ("left", "left", "right", "right", "right")


class Memory(tuple[RankMemory, ...]):
    """The memory of all ranks' GPUs, by rank; a table where it is shown."""

    __slots__ = ()

    @classmethod
    def of(cls, ranks: Sequence[Rank]) -> Memory:
        """The bytes in use now, and at most since the beginning, or since that was reset."""
        found = []
        for rank in ranks:
            if gpu := rank.gpu:
                now = gpu.recount()
                found.append(RankMemory(rank.number, str(gpu.device), now, gpu.peak, gpu.capacity))
        return cls(found)

    def _rows(self) -> list[tuple[str, str, str, str, str]]:
        head = "", "", say(en="now", zh="现在"), say(en="at most", zh="峰值"), say(en="of", zh="容量")
        return [head] + [
            (
                f"rank {one.rank}",
                one.device,
                bytes_text(one.now),
                bytes_text(one.peak),
                cuda_bytes(one.capacity),
            )
            for one in self
        ]

    def __repr__(self) -> str:
        return table_text(self._rows(), _SIDES)

    def _repr_html_(self) -> str:
        return table_html(self._rows(), _SIDES)
