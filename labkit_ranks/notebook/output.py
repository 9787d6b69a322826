"""Label each line that ranks print with the rank.

Ranks in this process share the caller's terminal. While they run, their output goes through :class:`RankOutput`; other
threads write as before.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, TextIO

from ..rank.rank import current_thread_rank

# The bar between rank and output, and the bar of a line that continues after another rank's output.
BAR, CONTINUED_BAR = "│", "┊"


class RankOutput:
    """A writer of the ranks' output, with a label before each line.

    Lines that are overwritten, as by ``tqdm``, are written in their last state.

    size      the number of ranks, which sets the width of labels.
    streams   the name of each stream -> the stream for its lines: ``{"stdout": …, "stderr": …}``.
    """

    def __init__(self, size: int, streams: dict[str, TextIO]) -> None:
        self._width, self._streams = len(str(size - 1)), streams
        # Rank and stream of the unfinished line, and of the lines that were interrupted.
        self._open: tuple[int, str] | None = None
        self._interrupted: set[tuple[int, str]] = set()
        self._overwritten: dict[tuple[int, str], _ProgressLines] = {}

    def label(self, rank: int, bar: str = BAR) -> str:
        return f"rank {rank:>{self._width}} {bar} "

    def write(self, rank: int, name: str, text: str) -> None:
        """Write ``text``, which ``rank`` printed to the stream ``name``."""
        mine, text = (rank, name), text.replace("\r\n", "\n")
        progress = self._overwritten.get(mine)
        if "\r" in text and progress is None:
            progress = self._overwritten[mine] = _ProgressLines()
        if progress is not None and progress.continues_with(text):
            progress.write(text)
            return
        for one in [one for one, progress in self._overwritten.items() if progress.is_finished()]:
            if one[0] == rank:
                self._write_overwritten(one)
        *lines, rest = text.split("\n")
        for line in lines:
            self._write_part(mine, line + "\n")
        if rest:
            self._write_part(mine, rest)

    def _write_part(self, mine: tuple[int, str], part: str) -> None:
        stream = self._streams[mine[1]]
        if self._open != mine:
            self.interrupt()
            continued = mine in self._interrupted
            self._interrupted.discard(mine)
            if continued and part == "\n":  # the interruption ended the line
                return
            stream.write(self.label(mine[0], CONTINUED_BAR if continued else BAR))
        stream.write(part)
        self._open = None if part.endswith("\n") else mine

    def _write_overwritten(self, mine: tuple[int, str]) -> None:
        """Write overwritten lines in their last state."""
        for row in self._overwritten.pop(mine).rows():
            self._write_part(mine, row + "\n")

    def interrupt(self) -> None:
        """End the unfinished line, before other output."""
        if self._open is not None:
            self._interrupted.add(self._open)
            self._streams[self._open[1]].write("\n")
            self._open = None

    def end(self) -> None:
        """End unfinished lines, after the ranks have run."""
        self.interrupt()
        self._interrupted.clear()
        for mine in sorted(self._overwritten):
            self._write_overwritten(mine)


class _ProgressLines:
    """Overwritten lines of a rank, and the cursor: as much of a terminal as progress bars need."""

    def __init__(self) -> None:
        self._rows, self._at, self._overwrites = [""], 0, False

    def continues_with(self, text: str) -> bool:
        """Whether ``text`` moves the cursor, or continues in an overwritten line."""
        if "\r" in text or text.startswith(_UP):
            return True
        return not self.is_finished() and (self._overwrites or text.startswith("\n"))

    def write(self, text: str) -> None:
        """Move the cursor and change the lines as a terminal would."""
        for part in filter(None, _MOVES.split(text)):
            if part == "\n":
                self._at += 1
                self._overwrites = True
                if self._at == len(self._rows):
                    self._rows.append("")
            elif part == _UP:
                self._at = max(0, self._at - 1)
            elif part == "\r":
                self._overwrites = True
            else:
                self._rows[self._at] = part if self._overwrites else self._rows[self._at] + part
                self._overwrites = False

    def rows(self) -> list[str]:
        rows = [row.rstrip() for row in self._rows]
        return rows if rows[-1] else rows[:-1]

    def is_finished(self) -> bool:
        """Whether the cursor is below all lines."""
        return 0 < self._at == len(self._rows) - 1 and not self._rows[-1]


# Moves the cursor a line up.
_UP = "\x1b[A"
_MOVES = re.compile(r"(\n|\r|\x1b\[A)")


class RankStream:
    """``sys.stdout`` or ``stderr`` of ranks: ranks write to :class:`RankOutput`, other threads to ``real``.

    Ranks keep the stream from run to run, as a process keeps its own; ``real`` and ``lines`` are set for each run.
    """

    def __init__(self, name: str, real: TextIO) -> None:
        self._name = name
        self.real = real
        self.lines: RankOutput | None = None

    def write(self, text: str) -> int:
        rank = current_thread_rank()
        if rank is None or self.lines is None or not isinstance(text, str):
            return self.real.write(text)  # which refuses other types
        self.lines.write(rank.number, self._name, text)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def close(self) -> None:
        """Do nothing: the real stream belongs to the process."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)
