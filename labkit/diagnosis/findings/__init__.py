"""All kinds of findings, in both languages: the text files of this folder declare them, and are read once."""

from math import isinf
from pathlib import Path

from .kind import Kind, declared, listed

_FILES = ("topics", "compared", "failures", "inputs", "memory", "modules", "outputs")
KINDS, PHRASES = declared(*(Path(__file__).with_name(f"{name}.txt") for name in _FILES))


def gap_text(gap: float) -> str:
    """A relative difference in words."""
    percent = f"{100 * gap:.2g}" if gap < 1 else f"{100 * gap:.0f}"
    return PHRASES["gap.other_kind"]() if isinf(gap) else PHRASES["gap"](percent=percent)


__all__ = ["KINDS", "PHRASES", "Kind", "gap_text", "listed"]
