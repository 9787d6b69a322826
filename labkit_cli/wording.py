"""What a command says, in both languages: the file ``.txt`` that has its name, read when the first text is wanted.

Options stand there in groups, one for each ``add_options``: ``%% release --to FOLDER`` is an option of the group
``release``. ``%% usage`` says how the command is called, and ``%% removed --old`` why an option of former versions
is refused. Any other entry is a text, called by all its words.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from labkit.base.texts import Entry, Text


class Wording:
    """The texts of the file ``name.txt``: ``wording["total"]`` is one of them."""

    def __init__(self, name: str, **facts: Mapping[str, Any]) -> None:
        """``facts``: what argparse is to know of options besides (see :func:`.usage.add_options`)."""
        self._file, self.facts = Path(__file__).with_name(f"{name}.txt"), facts

    @cached_property
    def _entries(self) -> dict[tuple[str, ...], Entry]:
        from labkit.base.texts import parse  # not for ``labkit --help``, which is to be there at once

        return {entry.words: entry for entry in parse(self._file.read_text("utf-8"))}

    def __getitem__(self, words: str) -> Text:
        return self.entry(words).texts[""]

    def entry(self, words: str) -> Entry:
        return self._entries[tuple(words.split())]

    def group(self, name: str) -> Iterator[tuple[str, str, Text]]:
        """The options of a group: their flags, what help calls their value, and their help."""
        for (first, *head), entry in self._entries.items():
            if first == name:
                yield head[0], " ".join(head[1:]), entry.texts[""]

    def usage(self) -> str | None:
        """The ways to call the command, one a line; None where argparse shall say it."""
        lines = [str(entry.texts[""]) for words, entry in self._entries.items() if words[0] == "usage"]
        return "\n       ".join(lines) or None

    def tell(self, words: str, /, file: TextIO | None = None, flush: bool = False, **facts: object) -> None:
        """Print a text with its facts, in the language in use, on standard output or ``file``."""
        print(self[words](**facts), file=file, flush=flush)
