"""Tables below a cell, as text and as HTML, and the table of the ranks' memory."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from labkit.base.language import say
from labkit.base.units import bytes_text, cuda_bytes

from ..calls.faults.report import align_columns
from ..rank.rank import Rank


def table_html(lines: Sequence[Sequence[str]], right: Sequence[int] = ()) -> str:
    """Format a table as HTML; columns ``right`` are flush right."""

    def cell(at: int, word: str) -> str:
        return f'<td style="text-align:{"right" if at in right else "left"}">{escape(word)}</td>'

    rows = ("".join(cell(at, word) for at, word in enumerate(words)) for words in lines)
    return f"<table>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>"


class RankMemory(NamedTuple):
    """Bytes on a rank's GPU: in use, at the peak, and in all."""

    rank: int
    device: str
    now: int
    peak: int
    capacity: int


# The columns of numbers.
_NUMBERS = (2, 3, 4)


class Memory(tuple[RankMemory, ...]):
    """The memory of all ranks' GPUs, by rank; shows itself as a table."""

    __slots__ = ()

    @classmethod
    def read(cls, ranks: Sequence[Rank]) -> Memory:
        """Return the bytes in use, and at the peak since the beginning or the last reset."""
        found = []
        for rank in ranks:
            if gpu := rank.gpu:
                now = gpu.recount()
                found.append(RankMemory(rank.number, str(gpu.device), now, gpu.peak, gpu.capacity))
        return cls(found)

    def _rows(self) -> list[tuple[str, str, str, str, str]]:
        head = "", "", say(en="now", zh="现在"), say(en="at most", zh="峰值"), say(en="of", zh="容量")
        found = [head]
        for one in self:
            now, peak, capacity = bytes_text(one.now), bytes_text(one.peak), cuda_bytes(one.capacity)
            found.append((f"rank {one.rank}", one.device, now, peak, capacity))
        return found

    def __repr__(self) -> str:
        return "\n".join(align_columns(self._rows(), _NUMBERS))

    def _repr_html_(self) -> str:
        return table_html(self._rows(), _NUMBERS)
