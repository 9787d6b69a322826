"""The rooms of labkit as a picture, ``python -m tools.architecture > docs/architecture.svg``: who stands on whom.

It is drawn from the table of ``tests/test_boundaries.py``, by labkit's own view. A line leads from a room down to one
that it imports, unless it imports that one by way of another; a box tells all of them when the mouse rests on it.
"""

from __future__ import annotations

import ast
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

from labkit.view.layout import sized
from labkit.view.picture import Box, Line, Picture, Sketch, Text
from labkit.view.svg import to_svg

BOUNDARIES = Path(__file__).parents[1] / "tests" / "test_boundaries.py"

WIDTH, HEIGHT = 1000, 788
_TOP, _ROW = 84, 104  # the upper edge of the first row, how far apart rows are
_SLAB, _LOW = 48, 60  # how high a box is that is as wide as the picture, and the least of the others
_CORE, _BESIDE, _ENDS = 0, 2, 5  # colours: of the core, of what stands beside it, of its top and bottom
_STEP = 14.5  # from one line of text to the next
_PALE = {_CORE: 0.68, _BESIDE: 0.72, _ENDS: 0.78}


@dataclass(frozen=True)
class Place:
    """Where a room stands in the picture, and what it is for in a few words."""

    row: float
    left: float
    width: float
    colour: int
    words: str


PLACES = {
    "cli": Place(0, 24, 952, _ENDS, "the command line: a module for each command"),
    "explore": Place(1, 96, 136, _CORE, "sliders, and the picture that follows"),
    "content.*": Place(0.9, 740, 120, _BESIDE, ""),
    "view": Place(2, 24, 168, _CORE, "plans and traces as pictures"),
    "distributed": Place(1.75, 644, 140, _BESIDE, "any torchrun script"),
    "classroom": Place(1.75, 814, 166, _BESIDE, "hand out, take in, grade"),
    "cost": Place(3, 24, 130, _CORE, "what a step costs"),
    "trace.recording": Place(3, 172, 146, _CORE, "watches the engine"),
    "diagnosis": Place(3, 400, 200, _CORE, "a user's model in, findings out"),
    "course": Place(3, 740, 150, _BESIDE, "lessons ask, judge and remember"),
    "engine": Place(4, 244, 104, _CORE, "the four verbs, in plain PyTorch"),
    "machine": Place(4, 362, 238, _CORE, "the idea: GPUs that are not there"),
    "content": Place(4, 740, 150, _BESIDE, "texts in two languages, data"),
    "plans": Place(5, 24, 130, _CORE, "from integers only"),
    "trace": Place(5, 172, 130, _CORE, "what happened"),
    "turns": Place(5, 320, 130, _CORE, "who runs when"),
    "children": Place(5, 468, 132, _CORE, "what child processes are told"),
    "base": Place(6.12, 24, 952, _ENDS, "what every room uses: numbers, units, two languages, patches"),
}
_FLOOR = "base"  # everybody stands on it: no line says so


def rooms(table: str) -> dict[str, set[str]]:
    """The rooms that have a place, and the others that each imports; a room without a place is part of a larger one.

    Raises KeyError that names a room of which no part has a place. What gives others their names is no room, nor is
    pytest's door to them.
    """
    found: dict[str, set[str]] = {}
    for line in filter(None, table.splitlines()):
        name, others = line.split("|")
        if not name.startswith(("__", "pytest_plugin")):
            home = _home(name.strip())
            found.setdefault(home, set()).update(set(map(_home, others.split())) - {home})
    return found


def _home(room: str) -> str:
    """The place of a room: its own, that of all rooms within a larger one, or that of the larger one."""
    name = room
    while name not in PLACES:
        name = name.rpartition(".")[0]
        if f"{name}.*" in PLACES:
            return f"{name}.*"
        if not name:
            raise KeyError(
                f"no place in the picture for {room} of {BOUNDARIES.name}: say in PLACES where it stands"
            )
    return name


def inner(table: str, room: str) -> list[str]:
    """The rooms at the place of ``room`` that have none of their own."""
    names = [line.partition("|")[0].strip() for line in table.splitlines()]
    larger = room.removesuffix(".*") + "."
    parts = [name.removeprefix(larger) for name in names if name.startswith(larger) and name not in PLACES]
    return [part for part in parts if "." not in part and _home(larger + part) == room]


def lines(found: dict[str, set[str]]) -> set[tuple[str, str]]:
    """Who imports whom, without what follows from others."""

    def below(room: str, seen: set[str]) -> set[str]:
        for other in found[room] - seen:
            seen.add(other)
            below(other, seen)
        return seen

    return {
        (room, other)
        for room, others in found.items()
        for other in others
        if other != _FLOOR and not any(other in below(between, set()) for between in others - {other})
    }


def architecture_picture(table: str) -> Picture:
    found = rooms(table)
    boxes = {room: _box(room, others, inner(table, room)) for room, others in found.items()}
    sketch = Sketch()
    sketch.add(
        Text(24, 36, "The rooms of labkit", 20, bold=True),
        Text(
            24, 60, "A line leads down to a room that is imported; all of them stand on base.", 13, muted=True
        ),
    )
    top, bottom = boxes["cli"].y + _SLAB + 18, boxes["base"].y - 18
    for left, width, words in ((12, 600, "the core: it stands alone"), (632, 356, "beside the core")):
        sketch.add(Box(left, top, width, bottom - top, dashed=True))
        sketch.add(Text(left + 14, bottom - 12, words, 13, bold=True, muted=True))
    sketch.add(*_lines(lines(found), boxes))
    for room, box in boxes.items():
        sketch.add(box, *_texts(box, _words(room, inner(table, room))))
    description = ". ".join(f"{room} imports {_listed(others)}" for room, others in found.items())
    return Picture(
        WIDTH, HEIGHT, tuple(sketch.boxes), tuple(sketch.texts), f"{description}.", tuple(sketch.lines)
    )


def _listed(others: set[str]) -> str:
    return ", ".join(sorted(others)) or "no other room"


def _is_slab(room: str) -> bool:
    return PLACES[room].width > WIDTH * 0.9


def _box(room: str, others: set[str], within: list[str]) -> Box:
    at = PLACES[room]
    high = _SLAB if _is_slab(room) else max(_LOW, 14 + _STEP * len(_words(room, within)))
    tip = f"{room} imports {_listed(others)}"
    return Box(at.left, _TOP + at.row * _ROW, at.width, high, at.colour, room, tint=_PALE[at.colour], tip=tip)


def _words(room: str, within: list[str]) -> list[tuple[str, float]]:
    """The lines of a box, and their sizes: the room's name, what it is for, the rooms within it."""
    at, lines = PLACES[room], []
    for words, size in ((room.replace(".", ". "), 16), (at.words, 11.5), (" · ".join(within), 10.5)):
        wrapped = textwrap.wrap(words, int((at.width - 8) / (size * 0.52)))
        lines += [
            (line.replace(". ", "."), sized(line, at.width - 6, size, bold=size == 16)) for line in wrapped
        ]
    return lines


def _texts(box: Box, lines: list[tuple[str, float]]) -> list[Text]:
    """The lines in the middle of their box, names bold."""
    x, y = box.x + box.width / 2, box.y + (box.height - _STEP * (len(lines) - 1)) / 2 + 4.5
    return [
        Text(x, y + at * _STEP, words, size, "middle", gpu=box.gpu, tint=box.tint, bold=size >= 12)
        for at, (words, size) in enumerate(lines)
    ]


def _lines(edges: set[tuple[str, str]], boxes: dict[str, Box]) -> list[Line]:
    """From the bottom of each room to the top of those that it imports; to a neighbour from side to side."""
    found = []
    for upper, lower in sorted(edges):
        above, below = boxes[upper], boxes[lower]
        if above.y == below.y:
            y = above.y + above.height / 2
            found.append(Line(above.x, y, below.x + below.width + 1, y, arrow=True))
            continue
        x2 = _port(lower, 1, upper, edges, boxes)
        x1 = x2 if _is_slab(upper) else _port(upper, 0, lower, edges, boxes)
        pale = above.label.startswith("content.")
        found.append(Line(x1, above.y + above.height, x2, below.y - 1, arrow=True, muted=pale))
    return found


def _port(room: str, end: int, other: str, edges: set[tuple[str, str]], boxes: dict[str, Box]) -> float:
    """Where the line to ``other`` ends at a room's bottom (``end`` 0) or top (1): they stand side by side, in the
    order of the rooms at their other ends, those of a room as wide as the picture on the left."""
    box = boxes[room]
    others = [edge[1 - end] for edge in edges if edge[end] == room and boxes[edge[1 - end]].y != box.y]
    others.sort(key=lambda name: 0 if _is_slab(name) else boxes[name].x + boxes[name].width / 2)
    return box.x + box.width * (others.index(other) + 1) / (len(others) + 1)


def table() -> str:
    """The table of boundaries, as the test has it."""
    for node in ast.parse(BOUNDARIES.read_text("utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "TABLE":
            text: str = ast.literal_eval(node.value)
            return text
    raise LookupError(f"{BOUNDARIES} has no TABLE")


def main() -> None:
    sys.stdout.write(to_svg(architecture_picture(table()), panel=True) + "\n")


if __name__ == "__main__":
    main()
