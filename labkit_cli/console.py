"""Output that any console can show: what its encoding lacks is a question mark, never an error. What long work is at.

Windows consoles and old locales write GBK, cp1252 or ASCII; ``LANG=C`` and ``PYTHONIOENCODING`` ask for them.
"""

from __future__ import annotations

import logging
import sys
from io import TextIOWrapper

from labkit.base.ours import PACKAGES


def forgive() -> None:
    """From now on standard output and error write what they can."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # nothing else has an encoding of its own
            stream.reconfigure(errors="replace")


def show_progress() -> None:
    """From now on what labkit's rooms log of long work is told on standard error, if that is a terminal."""
    if sys.stderr.isatty():
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("labkit: %(message)s …"))
        for logger in map(logging.getLogger, PACKAGES):
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
