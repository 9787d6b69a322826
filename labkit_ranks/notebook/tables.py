"""Tables below a cell, as text and as HTML, and the table of the ranks' memory."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from labkit.base.language import say
from labkit.base.texts import columns
from labkit.base.units import bytes_text, cuda_bytes

from ..rank.rank import Rank

Lines = Sequence[Sequence[str]]


def table_text(lines: Lines, sides: Sequence[str] | None = None) -> str:
    """Format a table as text. ``sides``: "left" or "right" for each column; all left by default."""
    sides = sides or ["left"] * len(lines[0])
    wide = [max(map(columns, words)) for words in zip(*lines, strict=True)]

    def pad_row(words: Sequence[str]) -> str:
        found = []
        for word, most, side in zip(words, wide, sides, strict=True):
            blank = " " * (most - columns(word))
            found.append(word + blank if side == "left" else blank + word)
        return "  ".join(found).rstrip()

    return "\n".join(map(pad_row, lines))


def table_html(lines: Lines, sides: Sequence[str] | None = None) -> str:
    """Format a table as HTML."""
    sides = sides or ["left"] * len(lines[0])

    def cells(words: Sequence[str]) -> str:
        both = zip(sides, words, strict=True)
        return "".join(f'<td style="text-align:{side}">{escape(word)}</td>' for side, word in both)

    return f"<table>{''.join(f'<tr>{cells(words)}</tr>' for words in lines)}</table>"


class RankMemory(NamedTuple):
    """Bytes on a rank's GPU: in use, at the peak, and in all."""

    rank: int
    device: str
    now: int
    peak: int
    capacity: int


# Align names left and numbers right.
_SIDES = ("left", "left", "right", "right", "right")


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
        return table_text(self._rows(), _SIDES)

    def _repr_html_(self) -> str:
        return table_html(self._rows(), _SIDES)
