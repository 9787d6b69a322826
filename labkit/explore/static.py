"""Explorers as HTML for readers without a kernel, with controls that still work.

The pictures are made beforehand for every combination of the kept values and packed together: shared elements are
stored once, so hundreds of pictures take 100 kB. Where scripts run, a slider or a list for each control appears;
elsewhere the picture stands alone.
"""

from __future__ import annotations

import json
import re
import zlib
from base64 import b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise, product
from math import prod
from pathlib import Path
from typing import Any

# The most pictures, and characters of them, in a notebook's output, which is made whenever an explorer is shown.
MOST, BUDGET = 24, 60_000

# Between the end of an element and the next tag.
_BETWEEN = re.compile("(?<=>)(?=<)")

# No ids, so that any number of explorers share a page: the script finds its own surroundings.
_SCRIPT = Path(__file__).with_suffix(".js").read_text("utf-8")


@dataclass(frozen=True)
class Control:
    """A control: its label, values in order, current value and look.

    names    the values in words; by default as they are.
    listed   a list, which keeps all values; otherwise a slider, which may drop some.
    even     whether the kept values are evenly spaced; otherwise small ones are closer together.
    weight   how many times more values to keep than of another control.
    """

    label: str
    values: Sequence[Any]
    now: Any
    names: dict[Any, str] | None = None
    listed: bool = False
    even: bool = False
    weight: int = 1

    def some(self, room: int) -> list[Any]:
        """Return at most ``room`` of the values (at least 2), including the current one."""
        values = list(self.values)
        if len(values) <= room:
            return values
        power = 1 if self.even else 2
        last = len(values) - 1
        kept = sorted({round(last * (at / (room - 1)) ** power) for at in range(room)})
        now = values.index(self.now)
        kept[min(range(len(kept)), key=lambda at: abs(kept[at] - now))] = now
        return [values[at] for at in sorted(set(kept))]


def static_html(
    controls: Sequence[Control],
    draw: Callable[[tuple[Any, ...]], str],
    words: str,
    *,
    most: int = MOST,
    budget: int = BUDGET,
) -> str:
    """Return an explorer as HTML whose controls work without a kernel.

    draw    the picture as SVG, given a value of each control.
    words    the picture at the values of now, in words.
    most     how many pictures may be made; more only where lists alone have more.
    budget   how many characters all of them packed may take; a single picture may take more.
    """
    made: dict[tuple[Any, ...], str] = {}
    first = min(most, MOST)  # a few, to see how much the others will take
    for room in (first, most):
        while True:
            grid = _grid(controls, room)
            for state in product(*grid):
                if state not in made:
                    made[state] = draw(state).replace("\n", " ")
            packed = _pack_pictures([made[state] for state in product(*grid)])
            count = prod(map(len, grid))
            smaller = min(count - 1, count * budget // len(packed))
            if len(packed) <= budget or _grid(controls, smaller) == grid:
                break
            room = smaller
        most = min(most, max(count, int(1.5 * count * budget / len(packed))))
    data = {
        "controls": [
            {
                "label": one.label,
                "names": [(one.names or {}).get(value, str(value)) for value in values],
                "at": values.index(one.now),
                "listed": one.listed,
            }
            for one, values in zip(controls, grid, strict=True)
        ],
        "packed": packed,
    }
    # Nothing in it may end the script element.
    text = json.dumps(data, ensure_ascii=False).replace("</", "<\\/")
    now = made[tuple(one.now for one in controls)]
    picture = b64encode(now.encode()).decode()
    look = "max-width:100%" if "labkit-narrow" in now else "min-width:520px"
    words = escape(words)
    return (
        '<div class="labkit-still" style="max-width:760px">'
        f'<div class="labkit-sentence" aria-live="polite">{words}</div>'
        '<div class="labkit-view" style="overflow-x:auto">'  # on a phone it scrolls, and text stays readable
        f'<img alt="{words}" style="{look}" src="data:image/svg+xml;base64,{picture}"></div>'
        f'<script type="application/json">{text}</script><script>\n{_SCRIPT}</script></div>'
    )


def _grid(controls: Sequence[Control], most: int) -> list[list[Any]]:
    """Choose the values that each control keeps: at most ``most`` combinations, as far as sliders can reduce them."""
    rooms = [len(one.values) for one in controls]
    grid = [one.some(room) for one, room in zip(controls, rooms, strict=True)]
    while prod(map(len, grid)) > most:
        sliders = [at for at, one in enumerate(controls) if not one.listed and len(grid[at]) > 2]
        if not sliders:
            break
        at = max(sliders, key=lambda at: len(grid[at]) / controls[at].weight)
        rooms[at] = len(grid[at]) - 1
        grid[at] = controls[at].some(rooms[at])
    return grid


def _pack_pictures(pictures: Sequence[str]) -> str:
    """Pack pictures for the script above: a table of elements, and for each picture the numbers of its elements.

    A number that follows the one before is left out.
    """
    table: dict[str, int] = {}
    rows = []
    for svg in pictures:
        numbers = [table.setdefault(element, len(table)) for element in _BETWEEN.split(svg)]
        rows.append(",".join("" if b == a + 1 else str(b) for a, b in pairwise([-1, *numbers])))
    press = zlib.compressobj(9, zlib.DEFLATED, -15)
    text = "\n".join(table) + "\n\n" + "\n".join(rows)
    return b64encode(press.compress(text.encode()) + press.flush()).decode()
