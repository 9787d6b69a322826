"""Translate argparse's own words into the language in use, for commands and the notebook's magics."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from .files import rows_beside
from .language import get_language
from .patches import Patch, Patches

# argparse's English texts, as it passes them to gettext, and their Chinese.
ARGPARSE = {"usage: ": "用法："} | dict(rows_beside(__file__))


def _argparse() -> Iterator[Patch]:
    # Patched, because gettext chooses its catalogues by the system's language, as files.
    if get_language() == "zh":
        yield Patch(argparse, "_", lambda text: ARGPARSE.get(text, text))
        yield Patch(
            argparse,
            "ngettext",
            lambda one, many, count: ARGPARSE.get(one if count == 1 else many, one if count == 1 else many),
        )


def localize_argparse() -> Patches:
    """Return a context in which argparse parses, and prints help, in the language in use."""
    return Patches(_argparse)
