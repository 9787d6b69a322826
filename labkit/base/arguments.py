"""argparse's own words in the language in use: commands and the notebook's magics read their arguments with it."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from .files import rows_beside
from .language import get_language
from .patches import Patch, Patches

# What argparse says, as it asks gettext for it, and the same in Chinese.
ARGPARSE = {"usage: ": "用法："} | dict(rows_beside(__file__))


def _argparse() -> Iterator[Patch]:
    # argparse has no other way: the catalogues that gettext reads are chosen by the system's language, as files.
    if get_language() == "zh":
        yield Patch(argparse, "_", lambda text: ARGPARSE.get(text, text))
        yield Patch(
            argparse,
            "ngettext",
            lambda one, many, count: ARGPARSE.get(one if count == 1 else many, one if count == 1 else many),
        )


def localize_argparse() -> Patches:
    """A context in which argparse speaks the language in use: it looks its words up while it parses and prints help."""
    return Patches(_argparse)
