"""The output files of ranks: torchrun's ``--redirects``, ``--tee`` and similar options, by PyTorch's own rules."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import IO, Any

from ..rank.rank import Rank


class WholeLines(io.TextIOBase):
    """A text stream that passes whole lines to a file and to every writer."""

    encoding = "utf-8"  # as the files are

    def __init__(self, file: IO[str], writers: Sequence[Callable[[str], Any]] = ()) -> None:
        self._file, self._writers, self._begun = file, (file.write, *writers), ""

    def fileno(self) -> int:
        """Return the file's descriptor, for children and faulthandler."""
        return self._file.fileno()

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        *lines, self._begun = (self._begun + text).split("\n")
        for line in lines:
            self._hand_on(line + "\n")
        return len(text)

    def end(self) -> None:
        """Write the rest."""
        if self._begun:
            self._hand_on(self._begun)
            self._begun = ""

    def _hand_on(self, line: str) -> None:
        for write in self._writers:
            write(line)


class Logs:
    """The streams and error files of a node's ranks.

    specs     a ``torch.distributed.elastic.multiprocessing.LogsSpecs``.
    name      of the role, the beginning of teed lines.
    filters   words of lines of stdout, and of stderr, to write to a filtered file, too.
    """

    def __init__(
        self,
        specs: Any,
        environments: Mapping[int, dict[str, str]],
        consoles: Sequence[IO[str]],
        name: str,
        filters: Sequence[Sequence[str]] = ((), ()),
    ) -> None:
        found = specs.reify(environments)  # adds the error file to the environments
        self.error_files: dict[int, str] = found.error_files
        self._files: list[IO[str]] = []
        self.streams: dict[int, list[WholeLines | None]] = {local: [None, None] for local in environments}
        kinds = (
            (found.stdouts, found.tee_stdouts, found.filtered_stdout),
            (found.stderrs, found.tee_stderrs, found.filtered_stderr),
        )
        for kind, (paths, teed, filtered) in enumerate(kinds):
            words = list(filters[kind])
            again = self._open(filtered) if words else None
            for local in environments:
                if not paths[local]:
                    continue  # the console
                header = f"[{name}{local}]:"
                writers: list[Callable[[str], Any]] = []
                if local in teed:
                    writers.append(_add_header(header, consoles[kind].write))
                    if again is not None:
                        writers.append(_filter_lines(words, _add_header(header, again.write)))
                self.streams[local][kind] = WholeLines(self._open(paths[local]), writers)

    def _open(self, path: str) -> IO[str]:
        file = open(path, "w", encoding="utf-8", errors="replace", buffering=1)  # noqa: SIM115 (close() does)
        self._files.append(file)
        return file

    def close(self) -> None:
        """Write the rest of each line, and close the files."""
        for lines in filter(None, chain(*self.streams.values())):
            lines.end()
        for file in self._files:
            file.close()

    def begin(self, rank: Rank) -> None:
        """Redirect the output of ``rank``, which is running."""
        out, err = self.streams[rank.local]
        sys.stdout, sys.stderr = out or sys.stdout, err or sys.stderr


def _add_header(header: str, write: Callable[[str], Any]) -> Callable[[str], Any]:
    return lambda line: write(f"{header}{line}" if line.endswith("\n") else f"{header}{line}\n")


def _filter_lines(words: Sequence[str], write: Callable[[str], Any]) -> Callable[[str], Any]:
    return lambda line: write(line) if any(word in line for word in words) else None
