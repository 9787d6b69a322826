"""Types shared by the course and the classroom for judging answers: kinds of answers, hints and errors."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.base.texts import Entry, InBoth, Text, parse


class Unreadable(Exception):
    """Raised for an answer of the wrong kind; ``words`` may explain more."""

    def __init__(self, words: Text | None = None) -> None:
        super().__init__(*filter(None, [words]))
        self.words = words


class Unwritten(Unreadable):
    """Raised if the learner's function still returns the ``...`` of the lesson's cell."""


@dataclass(frozen=True)
class Kind:
    """A kind of answer.

    read(answer)   returns the answer in the form that judges use; raises :class:`Unreadable`.
    wanted         a description of an answer ("a whole number"), shown if an answer cannot be read.
    """

    read: Callable[[object], Any]
    wanted: Text


@dataclass(frozen=True)
class Hint(InBoth):
    """An explanation of a wrong answer; ``id`` names the misconception, independent of numbers in the text.

    score   the share of the part's points that the answer still gets, 0 to 1.
    """

    id: str
    en: str
    zh: str
    score: float = 0.0


class Named:
    """The name of a text of the content, with values for its facts: ``Named("rounded", rows=9)``."""

    def __init__(self, name: str, /, **values: Any) -> None:
        self.name, self.values = name, values


class Praise(Named):
    """A remark on a right answer, in place of the exercise's ``why``; a judge yields it last."""


# The result of a judge: a hint for each mistake; the course shows the first.
Hints = Iterator[Named]


def sections(file: Path) -> list[tuple[Entry, list[Entry]]]:
    """Return the entries of a content file, each with its parts: answers, hints, and texts used by code."""
    found: list[tuple[Entry, list[Entry]]] = []
    for entry in parse(file.read_text("utf-8")):
        if entry.words[0] in ("-", "+", "hint", "part"):
            found[-1][1].append(entry)
        else:
            found.append((entry, []))
    return found


def texts_by_name(head: Entry, parts: Sequence[Entry]) -> dict[str, Text]:
    """Return the texts of a section by name; append code to the solution as a block.

    An answer that is a function is described by the head of the function in the code.
    """
    others = (part for part in parts if part.words[0] in ("hint", "part"))
    texts = {part.words[1]: part.texts[""] for part in others} | head.texts
    if head.code:
        if made := re.search(r"^def (\w+\(.*\)):", head.code, re.MULTILINE):
            texts.setdefault("wanted", Text(f"the function `{made[1]}`", f"函数 `{made[1]}`"))
        block = f"\n```\n{head.code}```".replace("{", "{{").replace("}", "}}")
        texts["solution"] = Text(texts["solution"].en + block, texts["solution"].zh + block)
    return texts
