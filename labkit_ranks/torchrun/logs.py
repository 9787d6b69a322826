"""The output files of ranks: torchrun's ``--redirects``, ``--tee`` and similar options, by PyTorch's own rules."""

from __future__ import annotations

import io
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any, TextIO

from torch.distributed.elastic.multiprocessing.tail_log import TailLog

from ..rank.rank import Rank


class LogFile(io.TextIOWrapper):
    """A file for a rank's output, in place of the console."""

    def __init__(self, path: str) -> None:
        raw = open(path, "wb")  # noqa: SIM115 (closed with the text stream)
        super().__init__(raw, encoding="utf-8", errors="replace", line_buffering=True)


class _ShownFiles(TailLog):
    """Shows lines of ranks' files as they come."""


_ShownFiles.__qualname__ = "labkit tail"  # names its threads, which cannot end a deadlock (turns/deadlock.py)


class Logs:
    """A context with the streams and error files of a node's ranks.

    specs     a ``torch.distributed.elastic.multiprocessing.LogsSpecs``.
    name      of the role, the beginning of teed lines.
    filters   words of lines of stdout, and of stderr, to write to a filtered file, too.
    """

    def __init__(
        self,
        specs: Any,
        environments: Mapping[int, dict[str, str]],
        consoles: Sequence[TextIO],
        name: str,
        filters: Sequence[Sequence[str]] = ((), ()),
    ) -> None:
        found = specs.reify(environments)  # adds the error file to the environments
        self.error_files: dict[int, str] = found.error_files
        self._stack = ExitStack()
        kinds = (
            (found.stdouts, found.tee_stdouts, found.filtered_stdout, consoles[0], filters[0]),
            (found.stderrs, found.tee_stderrs, found.filtered_stderr, consoles[1], filters[1]),
        )
        self._streams: list[dict[int, LogFile]] = []
        for paths, teed, filtered, console, words in kinds:
            shown = [_ShownFiles(name, teed, console)]
            if words:
                into = self._stack.enter_context(LogFile(filtered))
                shown.append(_ShownFiles(name, teed, into, log_line_filter=_make_filter(words)))
            for files in shown:
                self._stack.callback(files.start().stop)
            streams = {local: LogFile(path) for local, path in paths.items() if path}
            self._streams.append({local: self._stack.enter_context(one) for local, one in streams.items()})

    def __enter__(self) -> Logs:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stack.close()

    def begin(self, rank: Rank) -> None:
        """Redirect the output of ``rank``, which is running."""
        out, err = (streams.get(rank.local) for streams in self._streams)
        sys.stdout, sys.stderr = out or sys.stdout, err or sys.stderr


def _make_filter(words: Sequence[str]) -> Any:
    return lambda line: any(word in line for word in words)
