"""Texts in both languages that lie in files beside the code, one language below the other, with facts to fill in.

    %% sparse_input error batch
    en: An input is a sparse tensor, which scatter cannot cut: {problem}.
    zh: 有一个输入是稀疏张量，分发（scatter）无法切分它：{problem}。
    fix en: Pass it dense, `x.to_dense()`.
    fix zh: 以稠密形式传入：`x.to_dense()`。
    | code, the same in both languages

An entry begins with ``%%`` and its words; who reads the file says what these mean. A text may go on in the lines below
it: English lines are joined by a space, Chinese ones without, so a Chinese line ends where no space is wanted. A line
that begins with ``#`` is a comment.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from string import Formatter
from typing import Any
from unicodedata import east_asian_width

from .language import get_language, say
from .numbers import plural

_LABEL = re.compile(r"(?:(?P<label>[a-z]+) )?(?P<language>en|zh): ")


class InBoth:
    """A text in both languages; ``str()`` gives the one in use."""

    en: str
    zh: str

    def __str__(self) -> str:
        return say(en=self.en, zh=self.zh)


@dataclass(frozen=True)
class Text(InBoth):
    """A text in both languages."""

    en: str
    zh: str

    def in_language(self, language: str) -> str:
        """Return the text in ``language``."""
        return self.zh if language == "zh" else self.en

    @cached_property
    def facts(self) -> frozenset[str]:
        """The names of the facts to fill in."""
        return frozenset(name for _, name, _, _ in Formatter().parse(self.en + self.zh) if name)

    def __call__(self, **facts: object) -> str:
        """Fill in the facts, in the language in use. Raises TypeError if the names are not those of :attr:`facts`."""
        return fill_texts([self], **facts)[0]

    def fill(self, facts: Mapping[str, Any]) -> Text:
        """Fill in the facts, in both languages; a fact that is a Text gives each language its own.

        ``{rows:row}`` is a number with its English noun, ``1 row`` or ``2 rows``, ``{n:batch/batches}`` one with an odd
        plural; any other format is Python's own.
        """
        return Text(self.fill_in("en", facts), self.fill_in("zh", facts))

    def fill_in(self, language: str, facts: Mapping[str, Any]) -> str:
        """Fill in the facts, in one language."""
        filled = []
        for literal, name, spec, conversion in _PYTHON.parse(self.in_language(language)):
            filled.append(literal)
            if name is not None:
                value = _PYTHON.convert_field(_PYTHON.get_field(name, (), facts)[0], conversion)
                filled.append(_format_fact(value, spec or "", language))
        return "".join(filled)


_PYTHON = Formatter()


def _format_fact(value: Any, spec: str, language: str) -> str:
    if isinstance(value, Text):
        return value.in_language(language)
    if len(spec) > 1 and spec[0].isalpha():
        one, _, many = spec.partition("/")
        return f"{value} {many}" if many and value != 1 else plural(value, one)
    return format(value, spec)


def fill_texts(texts: Iterable[Text], **facts: object) -> list[str]:
    """Fill ``texts`` in the language in use, each with its own facts; TypeError for a missing or unused fact."""
    texts = list(texts)
    wanted = frozenset[str]().union(*(text.facts for text in texts))
    if facts.keys() != wanted:
        raise TypeError(f"{texts[0].en!r} wants the facts {sorted(wanted)}, got {sorted(facts)}")
    return [text.fill_in(get_language(), facts) for text in texts]


@dataclass(frozen=True)
class Entry:
    """An entry of a file: the words of its ``%%`` line and the texts below.

    texts   by their labels; that of ``en:`` and ``zh:`` is ``""``.
    code    the lines that begin with ``|``.
    """

    words: tuple[str, ...]
    texts: dict[str, Text]
    code: str = ""


def parse(text: str) -> list[Entry]:
    """Return the entries of a file. Raises ValueError for a line out of place and for a text that lacks a language."""
    # For each entry: words, texts (label -> language -> text), code.
    found: list[tuple[tuple[str, ...], dict[str, dict[str, str]], list[str]]] = []
    both: dict[str, str] = {}  # the text that the next line may continue, by language
    language = ""
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        if line.startswith("%%"):
            found.append((tuple(line[2:].split()), {}, []))
            language = ""
        elif found and line.startswith("|"):
            found[-1][2].append(line[2:] + "\n")
        elif found and (labelled := _LABEL.match(line)):
            both, language = found[-1][1].setdefault(labelled["label"] or "", {}), labelled["language"]
            both[language] = line[labelled.end() :].strip()
        elif language:
            both[language] += " " * (language == "en") + line.strip()
        else:
            raise ValueError(f"line {number}: {line.strip()!r} belongs to no text")
    for words, texts, _ in found:
        if any(each.keys() != {"en", "zh"} for each in texts.values()):
            raise ValueError(f"{' '.join(words)!r} must say everything in English and in Chinese")
    return [
        Entry(words, {label: Text(**each) for label, each in texts.items()}, "".join(code))
        for words, texts, code in found
    ]


class Texts(dict[tuple[str, ...], Text]):
    """Texts by the words of their ``%%`` lines; ``texts["more"]`` is ``texts[("more",)]``."""

    def __getitem__(self, words: str | tuple[str, ...]) -> Text:
        return super().__getitem__((words,) if isinstance(words, str) else words)


def texts_beside(module: str) -> Texts:
    """Return the texts in the ``.txt`` beside ``module``."""
    entries = parse(Path(module).with_suffix(".txt").read_text("utf-8"))
    return Texts((entry.words, entry.texts[""]) for entry in entries)


def text_function(module: str) -> Callable[..., str]:
    """Return a function that looks up a text beside ``module`` by its words and fills in the facts."""
    texts = texts_beside(module)

    def look_up(*words: str, **facts: object) -> str:
        return texts[words].fill_in(get_language(), facts) if facts else str(texts[words])

    return look_up


def columns(text: str) -> int:
    """Return the width of a text in a terminal's columns: Chinese letters take two."""
    return sum(1 + (east_asian_width(letter) in "FW") for letter in text)
