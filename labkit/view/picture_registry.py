"""Registry of pictures by the type that they show, to which other packages add theirs.

This module imports no picture, so that a package can register early and load late.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ..trace.trace import Trace
from .picture import Picture

# A chapter of a trace's page: heading, picture, text below.
Chapter = tuple[str, Picture, str]


@dataclass(frozen=True)
class Timeline:
    """How to show a kind of trace in time: as a picture, and as chapters of a page."""

    picture: Callable[[Trace], Picture]
    chapters: Callable[[Trace], Iterable[Chapter]]


# Full name of a type, which need not be loaded -> its picture in a notebook.
pictures: dict[str, Callable[[Any], Picture]] = {}
# For traces of ranks; None until labkit_ranks is loaded.
rank_timeline: Timeline | None = None


def register_rank_timeline(timeline: Timeline) -> None:
    """Show traces of ranks by ``timeline`` from now on."""
    global rank_timeline
    rank_timeline = timeline
