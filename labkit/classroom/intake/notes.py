"""Notes on what was odd about a file or its answers: their texts are in ``notes.txt``."""

from __future__ import annotations

from ...base.texts import texts_beside
from ..words import Note

_TEXTS = texts_beside(__file__)


def note(*words: str, **facts: object) -> Note:
    """The note under these words; the first of them is its kind."""
    text = _TEXTS[words]
    return Note(words[0], text.en.format(**facts), text.zh.format(**facts))
