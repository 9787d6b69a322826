"""A picture as plain data: its shapes are computed once and painted twice, as SVG and by matplotlib.

Coordinates are pixels, x to the right and y down, in a picture of ``width`` × ``height``.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Box:
    """A rectangle. ``gpu`` gives its colour; None is an outline (dashed: nothing there)."""

    x: float
    y: float
    width: float
    height: float
    gpu: int | None = None
    label: str = ""
    dashed: bool = False
    strong: bool = False


@dataclass(frozen=True)
class Text:
    """A text at a point. ``anchor``: "start", "middle" or "end". On a GPU's colour if ``gpu`` is given."""

    x: float
    y: float
    text: str
    size: float = 12
    anchor: str = "start"
    gpu: int | None = None
    muted: bool = False
    bold: bool = False


@dataclass(frozen=True)
class Picture:
    """Boxes, then texts over them. ``description`` says in words what is to be seen."""

    width: float
    height: float
    boxes: tuple[Box, ...]
    texts: tuple[Text, ...]
    description: str
