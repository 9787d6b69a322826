"""All kinds of findings, in both languages: the text files of this folder declare them, and are read once."""

from math import isinf
from pathlib import Path

from .kind import Kind, declared, listed

_FILES = ("topics", "compared", "failures", "inputs", "memory", "modules", "outputs")
KINDS, PHRASES = declared(*(Path(__file__).with_name(f"{name}.txt") for name in _FILES))


def gap_text(gap: float) -> str:
    """A relative difference in words."""
    return PHRASES["gap.other_kind"]() if isinf(gap) else PHRASES["gap"](percent=100 * gap)


__all__ = ["KINDS", "PHRASES", "Kind", "gap_text", "listed"]
