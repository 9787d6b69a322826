"""Label each line that ranks print with the rank.

Ranks in this process share the caller's terminal. While they run, their output goes through :class:`RankOutput`; other
threads write as before.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from typing import Any, TextIO

from ..rank.rank import current_thread_rank

# The bar between rank and output, and the bar of a line that continues after another rank's output.
BAR, AGAIN = "│", "┊"


class RankOutput:
    """A writer of the ranks' output, with a label before each line.

    size      the number of ranks, which sets the width of labels.
    streams   the name of each stream -> the stream for its lines: ``{"stdout": …, "stderr": …}``.
    progress  begins an area for lines that are overwritten, as by ``tqdm``, and returns a function that shows all of
              them. Without it only their last state is printed.
    """

    def __init__(
        self,
        size: int,
        streams: dict[str, TextIO],
        progress: Callable[[], Callable[[list[str]], object]] | None = None,
    ) -> None:
        self._width, self._streams, self._progress = len(str(size - 1)), streams, progress
        # Rank and stream of the unfinished line, and of the lines that were interrupted.
        self._open: tuple[int, str] | None = None
        self._cut: set[tuple[int, str]] = set()
        self._moving: dict[tuple[int, str], _ProgressLines] = {}
        self._area: Callable[[list[str]], object] | None = None

    def label(self, rank: int, bar: str = BAR) -> str:
        """Return the text before a line of ``rank``."""
        return f"rank {rank:>{self._width}} {bar} "

    def write(self, rank: int, name: str, text: str) -> None:
        """Write ``text``, which ``rank`` printed to the stream ``name``."""
        mine, text = (rank, name), text.replace("\r\n", "\n")
        moving = self._moving.get(mine)
        if "\r" in text and moving is None:
            moving = self._moving[mine] = _ProgressLines()
        if moving is not None and moving.takes(text):
            moving.write(text)
            self._show_moving()
            return
        if self._moving and all(one.is_over() for one in self._moving.values()):
            self._leave_moving()
        *lines, rest = text.split("\n")
        for line in lines:
            self._part(mine, line + "\n")
        if rest:
            self._part(mine, rest)

    def _part(self, mine: tuple[int, str], part: str) -> None:
        stream = self._streams[mine[1]]
        if self._open != mine:
            self.interrupt()
            again = mine in self._cut
            self._cut.discard(mine)
            if again and part == "\n":  # the interruption ended the line
                return
            stream.write(self.label(mine[0], AGAIN if again else BAR))
        stream.write(part)
        self._open = None if part.endswith("\n") else mine

    def _show_moving(self) -> None:
        rows = [(rank, row) for (rank, _), one in sorted(self._moving.items()) for row in one.rows()]
        if self._progress is not None and rows:
            if self._area is None:
                self.interrupt()
                self._area = self._progress()
            self._area([self.label(rank) + row for rank, row in rows])
        if len(rows) > _MOST_ROWS and all(one.is_over() for one in self._moving.values()):
            self._leave_moving()

    def _leave_moving(self) -> None:
        """Leave the overwritten lines in their last state, and continue below."""
        left, self._moving, self._area = self._moving, {}, None
        if self._progress is None:
            for mine, one in sorted(left.items()):
                for row in one.rows():
                    self._part(mine, row + "\n")

    def interrupt(self) -> None:
        """End the unfinished line, before other output."""
        if self._open is not None:
            self._cut.add(self._open)
            self._streams[self._open[1]].write("\n")
            self._open = None

    def end(self) -> None:
        """End unfinished lines, after the ranks have run."""
        self.interrupt()
        self._cut.clear()
        self._leave_moving()


class _ProgressLines:
    """Overwritten lines of a rank, and the cursor: as much of a terminal as progress bars need."""

    def __init__(self) -> None:
        self._rows, self._at, self._over = [""], 0, False

    def takes(self, text: str) -> bool:
        """Whether ``text`` moves the cursor, or continues in an overwritten line."""
        if "\r" in text or text.startswith(_UP):
            return True
        return not self.is_over() and (self._over or text.startswith("\n"))

    def write(self, text: str) -> None:
        for part in filter(None, _MOVES.split(text)):
            if part == "\n":
                self._at += 1
                self._over = True
                if self._at == len(self._rows):
                    self._rows.append("")
            elif part == _UP:
                self._at = max(0, self._at - 1)
            elif part == "\r":
                self._over = True
            else:
                self._rows[self._at] = part if self._over else self._rows[self._at] + part
                self._over = False

    def rows(self) -> list[str]:
        rows = [row.rstrip() for row in self._rows]
        return rows if rows[-1] else rows[:-1]

    def is_over(self) -> bool:
        """Whether the cursor is below all lines."""
        return 0 < self._at == len(self._rows) - 1 and not self._rows[-1]


# The most rows of an area of overwritten lines, all of which are shown again at each change.
_MOST_ROWS = 40
# Moves the cursor a line up.
_UP = "\x1b[A"
_MOVES = re.compile(r"(\n|\r|\x1b\[A)")


class RankStream(io.TextIOBase):
    """``sys.stdout`` or ``stderr`` of ranks: ranks write to :class:`RankOutput`, other threads to ``real``.

    Ranks keep the stream from run to run, as a process does; ``real`` and ``lines`` are set for each run.
    """

    def __init__(self, name: str, real: TextIO) -> None:
        self._name = name
        self.real = real
        self.lines: RankOutput | None = None

    def write(self, text: str) -> int:
        rank = current_thread_rank()
        if (
            rank is None or self.lines is None or not isinstance(text, str)
        ):  # the real stream refuses other types
            return self.real.write(text)
        self.lines.write(rank.number, self._name, text)
        return len(text)

    def flush(self) -> None:
        self.real.flush()

    def close(self) -> None:
        """Do nothing: the real stream belongs to the process.

        Python closes and flushes a collected stream at any time. A kernel's flush waits up to ten seconds for the
        output thread, which may itself wait for the ranks.
        """

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return self.real.isatty()

    def fileno(self) -> int:
        return self.real.fileno()

    @property
    def encoding(self) -> str:  # type: ignore[override]  # it is only read
        return self.real.encoding

    @property
    def errors(self) -> Any:  # type: ignore[override]
        return self.real.errors

    def __getattr__(self, name: str) -> Any:  # further methods of a kernel's stream
        return getattr(self.real, name)
