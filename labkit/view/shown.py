"""A table of pictures by the object that they show, to which the rooms beside the core add their own.

This module imports no picture, so that a room can say early what it shows and load it late.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ..trace.trace import Trace
from .picture import Picture

# The heading of a chapter on a trace's page, its picture, and a text below.
Chapter = tuple[str, Picture, str]


@dataclass(frozen=True)
class Timeline:
    """How traces of one sort are shown in time: in a picture, and in the chapters of a page."""

    picture: Callable[[Trace], Picture]
    chapters: Callable[[Trace], Iterable[Chapter]]


# The picture that a bare object at the end of a cell shows, by the full name of its type, which need not be loaded.
pictures: dict[str, Callable[[Any], Picture]] = {}
# Where ranks ran; None as long as nothing that runs ranks is loaded.
rank_timeline: Timeline | None = None


def register_rank_timeline(timeline: Timeline) -> None:
    """From now on ``timeline`` shows traces of ranks."""
    global rank_timeline
    rank_timeline = timeline
