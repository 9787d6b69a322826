"""Texts kept in both languages, because a student may read another language than the teacher."""

from __future__ import annotations

from dataclasses import dataclass

from labkit.base.texts import InBoth, Text

Words = Text


@dataclass(frozen=True)
class Remark(InBoth):
    """Something that the student and the teacher should know; ``kind`` is a word for programs."""

    kind: str
    en: str
    zh: str


class Problem(InBoth, ValueError):
    """Raised when a command cannot be done; the message says why, and what to do."""

    def __init__(self, *, en: str, zh: str) -> None:
        super().__init__(en, zh)
        self.en, self.zh = en, zh


def harmless(text: str) -> str:
    """Replaces letters that steer a terminal or turn the direction of writing; line ends and tabs stay."""
    return "".join(c if c in "\n\t" or c.isprintable() else "\ufffd" for c in text)
