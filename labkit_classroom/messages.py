"""Messages in both languages, because a student may read another language than the teacher."""

from __future__ import annotations

from dataclasses import dataclass

from labkit.base.texts import InBoth, Text

Words = Text


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
