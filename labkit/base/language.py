"""The language of everything labkit shows: figures, widgets, hints, findings, errors.

Every visible string is written once, in both languages: ``say(en="idle", zh="空闲")``.

The language is the last one set (:func:`set_language`, a lesson's ``begin``, ``--lang``); else the one in the
environment variable ``LABKIT_LANG``; else the computer's; else English. :func:`named_language` reads every form:
``zh``, ``ZH``, ``zh_CN.UTF-8``, ``zh-Hans``.
"""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

LANGUAGES = {"en": "English", "zh": "中文"}
VARIABLE = "LABKIT_LANG"
_current: str | None = None  # None until the language is set or first used


def named_language(text: object) -> str | None:
    """Return the key of LANGUAGES for ``text``, ignoring region, script and capitals; None for any other text."""
    first = re.split(r"[-_.@]", text.strip().lower())[0] if isinstance(text, str) else None
    return first if first in LANGUAGES else None


def check_language(language: object) -> str:
    """Return the key of LANGUAGES for ``language``; raise ValueError for any other."""
    found = named_language(language)
    if found is None:
        known = ", ".join(map(repr, LANGUAGES))
        raise wrong(
            en=f"language must be one of {known}, got {language!r}",
            zh=f"language 必须是 {known} 之一，现在是 {language!r}",
        )
    return found


def set_language(language: str) -> None:
    """Show everything in ``language``: ``"en"`` or ``"zh"`` (``"zh_CN"`` and the like count)."""
    global _current
    _current = check_language(language)


def get_language() -> str:
    """Return the language in use, ``"en"`` or ``"zh"``."""
    global _current
    if _current is None:
        named = os.environ.get(VARIABLE)
        _current = named_language(named) or (None if named else system_language()) or "en"
        if named and named_language(named) is None:  # warns once: _current is set now
            known = ", ".join(LANGUAGES)
            warnings.warn(
                f"{VARIABLE} must be one of {known}, got {named!r}: English is used "
                f"（{VARIABLE} 必须是 {known} 之一，现在使用英文）",
                stacklevel=2,
            )
    return _current


def system_language() -> str | None:
    """Return the computer's language if labkit has it."""
    named = next(filter(None, map(os.environ.get, ("LC_ALL", "LC_MESSAGES", "LANG"))), "")
    if not named and sys.platform == "win32":
        import ctypes
        from locale import windows_locale

        named = windows_locale.get(ctypes.windll.kernel32.GetUserDefaultUILanguage(), "")
    return named_language(named)


@contextmanager
def using(language: str) -> Iterator[None]:
    """Use ``language`` inside the context."""
    before = get_language()
    set_language(language)
    try:
        yield
    finally:
        set_language(before)


def say(*, en: str, zh: str) -> str:
    """Return the text in the language in use."""
    return zh if get_language() == "zh" else en


def wrong(kind: type[Exception] = ValueError, *, en: str, zh: str) -> Exception:
    """Make an error of ``kind`` in the language in use: ``raise wrong(en=…, zh=…)``."""
    return kind(say(en=en, zh=zh))


def series(words: Iterable[object]) -> str:
    """Join words: ``a, b, c``; in Chinese ``a、b、c``."""
    return say(en=", ", zh="、").join(map(str, words))
