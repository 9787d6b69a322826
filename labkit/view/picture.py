"""A picture as plain data: its shapes are computed once and painted twice, as SVG and by matplotlib.

Coordinates are pixels, x to the right and y down, in a picture of ``width`` × ``height``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import hypot

# The width of most pictures; and of bars, which a phone shows whole.
WIDTH, NARROW = 720, 372


@dataclass(frozen=True)
class Box:
    """A rectangle. ``gpu`` gives its colour; None is an outline (dashed: nothing there).

    tint    0 to 1: the colour mixed with that much white.
    faint   mixed with the background instead, dark in a dark theme (SVG only).
    strong  pointed out by a heavy outline.
    round   an ellipse in its place.
    hatched drawn through with slanting strokes.
    tip     what a reader sees who rests the mouse on it (SVG only).
    """

    x: float
    y: float
    width: float
    height: float
    gpu: int | None = None
    label: str = ""
    dashed: bool = False
    strong: bool = False
    tint: float = 0.0
    tip: str = ""
    round: bool = False
    hatched: bool = False
    faint: bool = False

    def strokes(self, apart: float = 6.0) -> tuple[tuple[float, float, float, float], ...]:
        """Return the slanting strokes of a hatched box, each from one point to another; () for other boxes.

        They line up with those of neighbouring boxes.
        """
        if not self.hatched:
            return ()
        found = []
        slant = (self.x + self.y) // apart * apart + apart - self.x - self.y
        while slant < self.width + self.height:
            x1, x2 = max(0.0, slant - self.height), min(slant, self.width)
            found.append((self.x + x1, self.y + slant - x1, self.x + x2, self.y + slant - x2))
            slant += apart
        return tuple(found)


@dataclass(frozen=True)
class Line:
    """A line from one point to another, in the colour of the text. ``over``: above the boxes, not under."""

    x1: float
    y1: float
    x2: float
    y2: float
    arrow: bool = False
    dashed: bool = False
    strong: bool = False
    muted: bool = False
    over: bool = False

    def head(self, size: float = 7.0) -> tuple[tuple[float, float], ...]:
        """Return the corners of the arrow head at the end of the line."""
        dx, dy = self.x2 - self.x1, self.y2 - self.y1
        length = hypot(dx, dy) or 1.0
        dx, dy = dx / length * size, dy / length * size
        back_x, back_y = self.x2 - dx, self.y2 - dy
        return (
            (self.x2, self.y2), (back_x - dy * 0.5, back_y + dx * 0.5), (back_x + dy * 0.5, back_y - dx * 0.5),
        )  # fmt: skip


@dataclass(frozen=True)
class Label:
    """A text at a point. ``anchor``: "start", "middle" or "end".

    gpu, tint   of the box behind the text, to choose a readable colour.
    mono        set as code.
    """

    x: float
    y: float
    text: str
    size: float = 12
    anchor: str = "start"
    gpu: int | None = None
    muted: bool = False
    bold: bool = False
    tint: float = 0.0
    mono: bool = False


@dataclass(frozen=True)
class Picture:
    """Lines, boxes over them, then texts. ``description`` is the picture in words."""

    width: float
    height: float
    boxes: tuple[Box, ...]
    texts: tuple[Label, ...]
    description: str
    lines: tuple[Line, ...] = ()


@dataclass
class Sketch:
    """A picture in the making."""

    boxes: list[Box] = field(default_factory=list)
    texts: list[Label] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)

    def add(self, *shapes: Box | Line | Label) -> None:
        """Add shapes on top."""
        for shape in shapes:
            if isinstance(shape, Box):
                self.boxes.append(shape)
            elif isinstance(shape, Label):
                self.texts.append(shape)
            else:
                self.lines.append(shape)

    def picture(self, height: float, description: str, width: float = WIDTH) -> Picture:
        """Return the picture of all shapes so far."""
        return Picture(width, height, tuple(self.boxes), tuple(self.texts), description, tuple(self.lines))
