"""Captions: what pictures say, in titles, legends, lanes and descriptions. Their texts are in ``captions.txt``."""

from __future__ import annotations

from ..base.texts import texts_beside

_TEXTS = texts_beside(__file__)


def caption(*words: str, **facts: object) -> str:
    """The text of these words, in the language in use, with those of the facts that it wants."""
    text = _TEXTS[words]
    return str(text.filled(facts) if facts else text)
