"""Draw which package imports which: ``python -m tools.architecture > docs/architecture.svg``.

The picture is drawn from the table HOUSE of ``tests/test_boundaries.py``. A line leads from a package down to an
imported package, unless a longer path does. The tooltip of a box lists all imported packages.
"""

from __future__ import annotations

import ast
import sys
import textwrap
from functools import cache
from pathlib import Path
from typing import Any

from labkit.base.ours import HOME
from labkit.view.picture import Box, Label, Line, Picture, Sketch
from labkit.view.svg import to_svg

BOUNDARIES = Path(__file__).parents[1] / "tests" / "test_boundaries.py"

WIDTH = 760
_TOP, _FLOOR, _HEIGHT, _STEP = (
    76,
    112,
    76,
    14.5,
)  # pixels: first box, floor to floor, height of a box, line to line
# Package -> purpose, left edge and width in pixels.
PLACES = {
    "labkit_cli": ("the command line", 24, 340),
    "labkit_content": ("questions, broken models, assignments", 396, 340),
    "labkit_classroom": ("hand out, take in, grade", 500, 236),
    "labkit_ranks": ("any torchrun script, its check-up and its plan", 24, 440),
    "labkit_course": ("lessons ask, judge and remember", 500, 236),
    "labkit_diagnose": ("a user's model in, findings out", 210, 340),
    "simgpu": ("simulated GPUs for PyTorch", 210, 340),
    "labkit": ("the kit: engine, plans, traces, pictures, explorers, cost", 24, 712),
}


def imports(table: str) -> dict[str, set[str]]:
    """Parse the table HOUSE: package -> imported packages."""
    rows = [line.split("|") for line in table.splitlines() if line]
    return {name.strip(): set(others.split()) for name, others in rows}


def floors(found: dict[str, set[str]]) -> dict[str, int]:
    """Return the floor of each package, from 0: above all imported packages."""
    floor: dict[str, int] = {}
    while len(floor) < len(found):
        ready = {name for name, others in found.items() if name not in floor and others <= floor.keys()}
        if not ready:
            raise ValueError(f"packages import each other in a circle: {sorted(found.keys() - floor.keys())}")
        floor |= {name: 1 + max((floor[other] for other in found[name]), default=-1) for name in ready}
    return floor


def lines(found: dict[str, set[str]]) -> set[tuple[str, str]]:
    """Return (importing, imported) package pairs, without pairs connected by a longer path."""

    def reachable(name: str) -> set[str]:
        return found[name].union(*map(reachable, found[name]))

    return {
        (name, other)
        for name, others in found.items()
        for other in others
        if not any(other in reachable(between) for between in others - {other})
    }


def rooms_in(package: str) -> list[str]:
    """Return the folders of a package, without those for a public path alone (``labkit.course``)."""
    found = {path.parent.name for path in (HOME / package).glob("*/__init__.py")}
    return sorted(name for name in found if f"{package}.{name}" not in _literal("ENTRIES"))


def architecture_picture(table: str) -> Picture:
    found = imports(table)
    floor = floors(found)
    top = max(floor.values())
    boxes = {name: _box(name, top - floor[name], found[name]) for name in found}
    sketch = Sketch()
    sketch.add(
        Label(24, 32, "The packages of labkit", 20, bold=True),
        Label(24, 54, "A line leads down to a package that is imported.", 13, muted=True),
    )
    edges = lines(found)
    for upper, lower in sorted(edges):
        above, below = boxes[upper], boxes[lower]
        x = _port(boxes, edges, upper, lower, 0), _port(boxes, edges, lower, upper, 1)
        sketch.add(Line(x[0], above.y + above.height, x[1], below.y - 1, arrow=True))
    for name, box in boxes.items():
        sketch.add(box, *_texts(name, box))
    description = " ".join(
        f"{name} imports {', '.join(sorted(others)) or 'none'}." for name, others in found.items()
    )
    height = _TOP + top * _FLOOR + _HEIGHT + 24
    return Picture(WIDTH, height, tuple(sketch.boxes), tuple(sketch.texts), description, tuple(sketch.lines))


def _box(name: str, row: int, others: set[str]) -> Box:
    _, left, width = PLACES[name]
    colour = 0 if name in ("labkit", "simgpu") else 2
    tip = f"{name} imports {', '.join(sorted(others)) or 'none'}"
    return Box(left, _TOP + row * _FLOOR, width, _HEIGHT, colour, name, tint=0.7, tip=tip)


def _port(boxes: dict[str, Box], edges: set[tuple[str, str]], name: str, other: str, end: int) -> float:
    """Return the x at which the line to ``other`` meets the box ``name``, at the bottom (``end`` 0) or top (1)."""
    box = boxes[name]
    others = [edge[1 - end] for edge in edges if edge[end] == name]
    others.sort(key=lambda one: (boxes[one].x + boxes[one].width / 2, one))
    return box.x + box.width * (others.index(other) + 1) / (len(others) + 1)


def _texts(name: str, box: Box) -> list[Label]:
    """Return the labels in a box: name, purpose, folders."""
    rows = [(name, 16.0), (PLACES[name][0], 12.0)]
    rows += [(row, 10.5) for row in textwrap.wrap(" · ".join(rooms_in(name)), int(box.width / 5.6))]
    x, y = box.x + box.width / 2, box.y + (box.height - _STEP * (len(rows) - 1)) / 2 + 4.5
    return [
        Label(x, y + at * _STEP, words, size, "middle", gpu=box.gpu, tint=box.tint, bold=size == 16)
        for at, (words, size) in enumerate(rows)
    ]


def house() -> str:
    """Return the table HOUSE of the test."""
    return str(_literal("HOUSE"))


@cache
def _literal(name: str) -> Any:
    """Return the value of a variable in the test of boundaries."""
    for node in ast.parse(BOUNDARIES.read_text("utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            return ast.literal_eval(node.value)
    raise LookupError(f"{BOUNDARIES} has no {name}")


if __name__ == "__main__":
    sys.stdout.write(to_svg(architecture_picture(house()), panel=True) + "\n")
