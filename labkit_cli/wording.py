"""A command's texts in both languages, read from its ``.txt`` file on first use.

Options are in groups, one for each call of ``add_options``: ``%% release --to FOLDER`` is an option of the group
``release``. ``%% usage`` is the usage line, and ``%% removed --old`` the error for an option that does not exist, or no
longer. Any other entry is a text with all its words as the key.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from labkit.base.texts import Entry, Text


class Wording:
    """The texts of the file ``name.txt``, by key: ``wording["total"]``."""

    def __init__(self, name: str, **facts: Mapping[str, Any]) -> None:
        """Set ``facts``, the options' arguments for argparse (see :func:`.usage.add_options`)."""
        self._file, self.facts = Path(__file__).with_name(f"{name}.txt"), facts

    @cached_property
    def _entries(self) -> dict[tuple[str, ...], Entry]:
        from labkit.base.texts import parse  # imported late, to keep ``labkit --help`` fast

        return {entry.words: entry for entry in parse(self._file.read_text("utf-8"))}

    def __getitem__(self, words: str) -> Text:
        return self.entry(words).texts[""]

    def entry(self, words: str) -> Entry:
        return self._entries[tuple(words.split())]

    def group(self, name: str) -> Iterator[tuple[str, str, Text]]:
        """Yield (flags, metavar, help) for the options of a group."""
        for (first, *head), entry in self._entries.items():
            if first == name:
                yield head[0], " ".join(head[1:]), entry.texts[""]

    def usage(self) -> str | None:
        """Return the usage lines, or None to let argparse write them."""
        lines = [str(entry.texts[""]) for words, entry in self._entries.items() if words[0] == "usage"]
        return "\n       ".join(lines) or None

    def tell(self, words: str, /, file: TextIO | None = None, flush: bool = False, **facts: object) -> None:
        """Print a text with its facts, in the current language."""
        print(self[words](**facts), file=file, flush=flush)
