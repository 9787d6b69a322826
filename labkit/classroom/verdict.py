"""What is said of an answer: words in both languages, hints, and the verdict on one part of a question."""

from __future__ import annotations

from dataclasses import dataclass

from ..base.language import say


@dataclass(frozen=True)
class Words:
    """A text in both languages; ``str()`` is the one in use."""

    en: str
    zh: str

    def __str__(self) -> str:
        return say(en=self.en, zh=self.zh)

    def of(self, language: str) -> str:
        return self.zh if language == "zh" else self.en


@dataclass(frozen=True)
class Hint:
    """What is wrong with an answer, and why; ``id`` names the misconception, whatever the numbers in the words.

    score   the share of the part's points that the answer keeps all the same, 0 to 1.
    """

    id: str
    en: str
    zh: str
    score: float = 0.0

    def __str__(self) -> str:
        return say(en=self.en, zh=self.zh)


@dataclass(frozen=True)
class Verdict:
    """The share of a part's points, 0 to 1; unless it is all of them, the hint's id and its words."""

    score: float
    hint: str | None = None
    en: str = ""
    zh: str = ""

    @classmethod
    def of(cls, hint: Hint | None) -> Verdict:
        return cls(1.0) if hint is None else cls(hint.score, hint.id, hint.en, hint.zh)
