"""The words of judging, which the course and the classroom share: kinds of answers, hints, and what cannot be read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.base.texts import Entry, InBoth, Text, parse


class Unreadable(Exception):
    """The answer is not of the kind that the question asks for; ``words`` say more, if more can be said."""

    def __init__(self, words: Text | None = None) -> None:
        super().__init__(*filter(None, [words]))
        self.words = words


class Unwritten(Unreadable):
    """The learner's function still returns the ``...`` of the lesson's cell."""


@dataclass(frozen=True)
class Kind:
    """A kind of answer.

    read(answer)   the answer in the form that judges work with; raises :class:`Unreadable`.
    wanted         what an answer looks like ("a whole number"), said when one cannot be read.
    """

    read: Callable[[object], Any]
    wanted: Text


@dataclass(frozen=True)
class Hint(InBoth):
    """Says what is wrong with an answer, and why; ``id`` names the misconception, whatever the numbers in the words.

    score   the share of the part's points that the answer keeps all the same, 0 to 1.
    """

    id: str
    en: str
    zh: str
    score: float = 0.0


class Named:
    """A text of the content by its name, and the values that its words need: ``Named("rounded", rows=9)``."""

    def __init__(self, name: str, /, **values: Any) -> None:
        self.name, self.values = name, values


# What a judge gives: a hint for each thing that is wrong, the first of which is shown.
Hints = Iterator[Named]


def sections(file: Path) -> list[tuple[Entry, list[Entry]]]:
    """The entries of a file of the content, each with its parts: answers, hints, and other texts that code names."""
    found: list[tuple[Entry, list[Entry]]] = []
    for entry in parse(file.read_text("utf-8")):
        if entry.words[0] in ("-", "+", "hint", "part"):
            found[-1][1].append(entry)
        else:
            found.append((entry, []))
    return found


def named(head: Entry, parts: Sequence[Entry]) -> dict[str, Text]:
    """The texts of a section by their names; code stands as a block below the solution."""
    others = (part for part in parts if part.words[0] in ("hint", "part"))
    texts = {part.words[1]: part.texts[""] for part in others} | head.texts
    if head.code:
        block = f"\n```\n{head.code}```".replace("{", "{{").replace("}", "}}")
        texts["solution"] = Text(texts["solution"].en + block, texts["solution"].zh + block)
    return texts


def worded(texts: Mapping[str, Text], named: Named, values: Mapping[str, Any]) -> Text:
    """The text that ``named`` names, filled with its own values and the others; values that are Named are texts too."""
    values = {**values, **named.values}
    plain = {name: value for name, value in values.items() if not isinstance(value, Named)}
    parts = {name: worded(texts, value, plain) for name, value in values.items() if isinstance(value, Named)}
    return texts[named.name].fill(plain | parts)
