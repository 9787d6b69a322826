"""What is said of a wrong answer."""

from __future__ import annotations

from dataclasses import dataclass

from .words import InBoth


@dataclass(frozen=True)
class Hint(InBoth):
    """What is wrong with an answer, and why; ``id`` names the misconception, whatever the numbers in the words.

    score   the share of the part's points that the answer keeps all the same, 0 to 1.
    """

    id: str
    en: str
    zh: str
    score: float = 0.0
