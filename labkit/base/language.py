"""The language of everything labkit shows: figures, widgets, hints, findings, errors.

Every visible string is written once, both languages side by side: ``say(en="idle", zh="空闲")``.

The language is the one that was set last (:func:`set_language`, a lesson's ``begin``, ``--lang`` on the command
line); until one is, the one that the environment variable ``LABKIT_LANG`` names; without it, the one that the user has
chosen for the whole computer; English if labkit does not speak that.
However it is written, one rule reads it (:func:`named_language`): ``zh``, ``ZH``, ``zh_CN.UTF-8``, ``zh-Hans``.
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
_current: str | None = None  # None: nobody has set or asked for one yet


def named_language(text: object) -> str | None:
    """The key of LANGUAGES that ``text`` names, as systems and browsers write them: region, script, capitals aside."""
    first = re.split(r"[-_.@]", text.strip().lower())[0] if isinstance(text, str) else None
    return first if first in LANGUAGES else None


def check_language(language: object) -> str:
    """The key of LANGUAGES that ``language`` names; ValueError if it names none."""
    found = named_language(language)
    if found is None:
        known = ", ".join(map(repr, LANGUAGES))
        raise ValueError(
            say(
                en=f"language must be one of {known}, got {language!r}",
                zh=f"language 必须是 {known} 之一，现在是 {language!r}",
            )
        )
    return found


def set_language(language: str) -> None:
    """Show everything in ``language``: ``"en"`` or ``"zh"`` (``"zh_CN"`` and the like count)."""
    global _current
    _current = check_language(language)


def get_language() -> str:
    """The language in use, ``"en"`` or ``"zh"``: at first what ``LABKIT_LANG`` names, or else the system."""
    global _current
    if _current is None:
        named = os.environ.get(VARIABLE)
        _current = named_language(named) or (None if named else system_language()) or "en"
        if named and named_language(named) is None:  # said once, for the language is known from here on
            known = ", ".join(LANGUAGES)
            warnings.warn(
                f"{VARIABLE} must be one of {known}, got {named!r}: English is used "
                f"（{VARIABLE} 必须是 {known} 之一，现在使用英文）",
                stacklevel=2,
            )
    return _current


def system_language() -> str | None:
    """The language that the user has chosen for the whole computer, if labkit speaks it."""
    named = next(filter(None, map(os.environ.get, ("LC_ALL", "LC_MESSAGES", "LANG"))), "")
    if not named and sys.platform == "win32":
        import ctypes
        from locale import windows_locale

        named = windows_locale.get(ctypes.windll.kernel32.GetUserDefaultUILanguage(), "")
    return named_language(named)


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
    return zh if get_language() == "zh" else en


def wrong(kind: type[Exception] = ValueError, *, en: str, zh: str) -> Exception:
    """The error ``kind`` with the text that is in the language in use: ``raise wrong(en=…, zh=…)``."""
    return kind(say(en=en, zh=zh))


def series(words: Iterable[object]) -> str:
    """``a, b, c``; in Chinese ``a、b、c``."""
    return say(en=", ", zh="、").join(map(str, words))
