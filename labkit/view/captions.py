"""Captions: what pictures say, in titles, legends, lanes and descriptions. Their texts are in ``captions.txt``."""

from __future__ import annotations

from collections.abc import Callable

from ..base.texts import texts_beside


def captions(module_file: str) -> Callable[..., str]:
    """The function that gives captions from the file ``.txt`` beside a module's ``.py``."""
    texts = texts_beside(module_file)

    def caption(*words: str, **facts: object) -> str:
        """The text of these words, in the language in use, with those of the facts that it wants."""
        text = texts[words]
        return str(text.filled(facts) if facts else text)

    return caption


caption = captions(__file__)
