"""The language of everything labkit shows: figures, widgets, hints, findings, errors.

Every visible string is written once, both languages side by side: ``say(en="idle", zh="空闲")``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

LANGUAGES = {"en": "English", "zh": "中文"}
_current = "en"


def checked_language(language: object) -> str:
    """``language`` if it is a key of LANGUAGES; else ValueError."""
    if not isinstance(language, str) or language not in LANGUAGES:
        known = ", ".join(map(repr, LANGUAGES))
        raise ValueError(
            say(
                en=f"language must be one of {known}, got {language!r}",
                zh=f"language 必须是 {known} 之一，现在是 {language!r}",
            )
        )
    return language


def set_language(language: str) -> None:
    """Show everything in ``language``: ``"en"`` or ``"zh"``."""
    global _current
    _current = checked_language(language)


def get_language() -> str:
    """The language in use: ``"en"`` (at first) or ``"zh"``."""
    return _current


@contextmanager
def using(language: str) -> Iterator[None]:
    """Inside, everything is shown in ``language``."""
    before = get_language()
    set_language(language)
    try:
        yield
    finally:
        set_language(before)


def say(*, en: str, zh: str) -> str:
    """The one of the two texts that is in the language in use."""
    return zh if _current == "zh" else en
