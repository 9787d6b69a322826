"""Output that any console can show: what its encoding lacks is replaced by what says the same, never by an error. What
long work is at.

Windows consoles and old locales write GBK, cp1252 or ASCII; ``LANG=C`` and ``PYTHONIOENCODING`` ask for them.
"""

from __future__ import annotations

import codecs
import logging
import sys
import unicodedata
from io import TextIOWrapper

from ..base.ours import PACKAGE

# Characters that our texts use, and what stands for them.
INSTEAD = {
    "⌈": "ceil(", "⌉": ")", "⌊": "floor(", "⌋": ")", "✓": "ok", "✔": "ok", "✗": "x", "✘": "x", "→": "->", "←": "<-",
    "↔": "<->", "⇒": "=>", "×": "x", "÷": "/", "·": "-", "•": "-", "…": "...", "–": "-", "—": "-", "−": "-", "≤": "<=",
    "≥": ">=", "≠": "!=", "≈": "~", "±": "+-", "∞": "inf", "∑": "sum", "Σ": "sum", "√": "sqrt", "½": "1/2", "¼": "1/4",
    "‘": "'", "’": "'", "“": '"', "”": '"', "°": " deg", "µ": "u", "μ": "u", "█": "#", "░": ".", "▒": ":", "■": "#",
    "│": "|", "─": "-", "└": "+", "├": "+", "╭": "+", "╮": "+", "╰": "+", "╯": "+", "▶": ">", "○": "o", "●": "*",
}  # fmt: skip
_ERRORS = "labkit.instead"


def instead(error: UnicodeError) -> tuple[str, int]:
    """An error handler for codecs: it gives what is written in place of the characters of ``error``."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(map(_instead, error.object[error.start : error.end])), error.end


def _instead(character: str) -> str:
    """``character`` in ASCII, which every console has: by the table, without its accent, or as its number."""
    said = INSTEAD.get(character)
    if said is None:
        plain = unicodedata.normalize("NFKD", character).encode("ascii", "ignore").decode()
        said = plain or f"\\u{ord(character):04x}"
    return said


def forgive() -> None:
    """From now on standard output and error write what they can."""
    codecs.register_error(_ERRORS, instead)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # nothing else has an encoding of its own
            stream.reconfigure(errors=_ERRORS)


def show_progress() -> None:
    """From now on what labkit's rooms log of long work is told on standard error, if that is a terminal."""
    if sys.stderr.isatty():
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("labkit: %(message)s …"))
        logger = logging.getLogger(PACKAGE)
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.propagate = False


def without_chinese() -> str | None:
    """The encoding of standard output or error, if what is said in Chinese could not be read there."""
    for stream in (sys.stdout, sys.stderr):
        encoding = getattr(stream, "encoding", None) or "utf-8"
        try:
            "课程".encode(encoding)
        except (UnicodeEncodeError, LookupError):
            return str(encoding)
    return None
