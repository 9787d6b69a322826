"""Messages in both languages, because a student may read another language than the teacher."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from labkit.base.texts import InBoth, Text, texts_beside

Words = Text
_Message = TypeVar("_Message")


def text_maker(kind: Callable[[str, str, str], _Message], module: str) -> Callable[..., _Message]:
    """Return a function that fills a text beside ``module`` and makes a message of it, ``kind(key, English, Chinese)``.

    Its arguments are the words of the text's ``%%`` line, of which the first is the key, and the facts by name.
    """
    texts = texts_beside(module)

    def make(*words: str, **facts: object) -> _Message:
        text = texts[words].fill(facts)
        return kind(words[0], text.en, text.zh)

    return make


def listed(names: Iterable[str]) -> Words:
    """Return names as a fact of a text: ``a, b``; in Chinese ``a、b``."""
    names = list(names)
    return Words(", ".join(names), "、".join(names))


@dataclass(frozen=True)
class Remark(InBoth):
    """A remark for the student and the teacher; ``kind`` is a key for programs."""

    kind: str
    en: str
    zh: str


class Problem(InBoth, ValueError):
    """Raised when a command cannot continue; the message says why, and what to do."""

    def __init__(self, *, en: str, zh: str) -> None:
        super().__init__(en, zh)
        self.en, self.zh = en, zh


def replace_controls(text: str) -> str:
    """Replace characters that control a terminal or the direction of writing, except line ends and tabs."""
    return "".join(c if c in "\n\t" or c.isprintable() else "\ufffd" for c in text)
