"""Texts in both languages that lie in files beside the code, one language below the other, with facts to fill in.

    %% sparse_input error batch
    en: An input is a sparse tensor, which scatter cannot cut: {problem}.
    zh: 有一个输入是稀疏张量，分发（scatter）无法切分它：{problem}。
    fix en: Pass it dense, `x.to_dense()`.
    fix zh: 以稠密形式传入：`x.to_dense()`。

An entry begins with ``%%`` and its words; who reads the file says what these mean. A text may go on in the lines below
it: English lines are joined by a space, Chinese ones without, so a Chinese line ends where no space is wanted. A line
that begins with ``#`` is a comment.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from string import Formatter

from .language import say

_LABEL = re.compile(r"(?:(?P<label>[a-z]+) )?(?P<language>en|zh): ")


@dataclass(frozen=True)
class Text:
    """One text in both languages."""

    en: str
    zh: str

    @cached_property
    def facts(self) -> frozenset[str]:
        """The names of the facts to fill in."""
        return frozenset(name for _, name, _, _ in Formatter().parse(self.en + self.zh) if name)

    def __call__(self, **facts: object) -> str:
        """The text in the language in use, with its facts. Raises TypeError if these are not the ones it wants."""
        return filled([self], **facts)[0]


def filled(texts: Iterable[Text], **facts: object) -> list[str]:
    """``texts`` in the language in use, each with those of the facts that it wants; together they want all of them."""
    texts = list(texts)
    wanted = frozenset[str]().union(*(text.facts for text in texts))
    if facts.keys() != wanted:
        raise TypeError(f"{texts[0].en!r} wants the facts {sorted(wanted)}, got {sorted(facts)}")
    return [say(en=text.en, zh=text.zh).format(**facts) for text in texts]


@dataclass(frozen=True)
class Entry:
    """The words of one ``%%`` line and the texts below it, by their labels; that of ``en:`` and ``zh:`` is ``""``."""

    words: tuple[str, ...]
    texts: dict[str, Text]


def parse(text: str) -> list[Entry]:
    """The entries of a file. Raises ValueError that names a line out of place, or an entry that lacks something."""
    entries: list[tuple[tuple[str, ...], dict[str, dict[str, str]]]] = []
    both: dict[str, str] = {}  # the text that may go on, by language
    language = ""
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        if line.startswith("%%"):
            entries.append((tuple(line[2:].split()), {}))
            language = ""
        elif entries and (found := _LABEL.match(line)):
            both, language = entries[-1][1].setdefault(found["label"] or "", {}), found["language"]
            both[language] = line[found.end() :].strip()
        elif language:
            both[language] += " " * (language == "en") + line.strip()
        else:
            raise ValueError(f"line {number}: {line.strip()!r} belongs to no text")
    for words, texts in entries:
        if not texts or any(both.keys() != {"en", "zh"} for both in texts.values()):
            raise ValueError(f"{' '.join(words)!r} must say everything in English and in Chinese")
    return [Entry(words, {label: Text(**both) for label, both in texts.items()}) for words, texts in entries]
