"""Output for every console: replace characters that its encoding lacks, and show progress of long work.

Windows consoles and old locales write GBK, cp1252 or ASCII; so do ``LANG=C`` and ``PYTHONIOENCODING``.
"""

from __future__ import annotations

import logging
import sys
from io import TextIOWrapper

from labkit.base.ours import PACKAGES


def replace_unencodable() -> None:
    """Replace characters that standard output or error cannot encode by question marks."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")


def show_progress() -> None:
    """Print log messages of our packages on standard error, if it is a terminal."""
    if sys.stderr.isatty():
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("labkit: %(message)s …"))
        for logger in map(logging.getLogger, PACKAGES):
            logger.addHandler(handler)
            logger.setLevel(logging.INFO)
            logger.propagate = False


def encoding_without_chinese() -> str | None:
    """Return the encoding of standard output or error that lacks Chinese characters, or None."""
    for stream in (sys.stdout, sys.stderr):
        encoding = getattr(stream, "encoding", None) or "utf-8"
        try:
            "课程".encode(encoding)
        except (UnicodeEncodeError, LookupError):
            return str(encoding)
    return None
