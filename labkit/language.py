"""The language of everything labkit shows: figures, widgets, hints, findings.

Every visible string is written once, both languages side by side: ``say(en="idle", zh="空闲")``.
"""

from __future__ import annotations

LANGUAGES = {"en": "English", "zh": "中文"}
_current = "en"


def set_language(language: str) -> None:
    """Show everything in ``language``: ``"en"`` or ``"zh"``."""
    global _current
    if language not in LANGUAGES:
        known = ", ".join(repr(name) for name in LANGUAGES)
        raise ValueError(f"language must be one of {known}, got {language!r}")
    _current = language


def get_language() -> str:
    """The language in use: ``"en"`` (at first) or ``"zh"``."""
    return _current


def say(*, en: str, zh: str) -> str:
    """The one of the two texts that is in the language in use."""
    return zh if _current == "zh" else en
