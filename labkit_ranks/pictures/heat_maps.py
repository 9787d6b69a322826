"""Draw matrices on ranks: a lane for each rank, a column for each matrix; numbers far from 0 are dark."""

from __future__ import annotations

from labkit.base.language import say, series
from labkit.base.numbers import plural
from labkit.view.layout import BASELINE, Lanes, choose_shown, fit_size
from labkit.view.picture import WIDTH, Box, Label, Picture, Sketch

from ..plans.heat import HeatMaps
from .captions import caption

_LEFT, _RIGHT, _TOP, _GAP = 62, 8, 34, 14
_WIDE, _HIGH, _LANE = 26.0, 14.0, 132  # the largest cell and lane


def heat_picture(heat: HeatMaps, words: str = "") -> Picture:
    """Draw each cell in the rank's colour; leave cells empty that a rank does not hold. ``words``: the caption."""
    columns = {name: max(len(part[0]) for part in parts) for name, parts in heat.maps.items()}
    rows = max(len(part) for parts in heat.maps.values() for part in parts)
    across = WIDTH - _LEFT - _RIGHT - _GAP * (len(columns) - 1)
    wide, high = min(_WIDE, across / sum(columns.values())), min(_HIGH, _LANE / rows)
    shown = choose_shown(heat.ranks, most=8, head=7, tail=1)
    lane = Lanes(_TOP, _LEFT, _RIGHT, max(rows * high, 16) + 10, 13)
    sketch = Sketch()
    greatest = {}
    for name, parts in heat.maps.items():
        held = [value for part in parts for row in part for value in row if value is not None]
        greatest[name] = max([*map(abs, held), 1e-30])
    for at, rank in lane.iterate_shown(sketch, shown, lambda rest: f"rank {rest[0]}–{rest[-1]}"):
        sketch.add(lane.name(at, f"rank {rank}"))
        x = float(_LEFT)
        for name, parts in heat.maps.items():
            part = parts[rank]
            y = lane.y(at) + (lane.high - len(part) * high) / 2
            outline = (len(part[0]) * wide, len(part) * high)
            sketch.add(Box(x, y, *outline, None, f"rank {rank} {name}", dashed=True))
            for i, row in enumerate(part):
                for j, value in enumerate(row):
                    if value is None:
                        continue
                    left, top = x + j * wide, y + i * high
                    shown_value = round(value, 1) + 0.0  # no "-0.0"
                    digits = f"{shown_value:.{0 if value == round(value) else 1}f}"
                    tint = 0.9 * (1 - abs(value) / greatest[name])
                    tip = f"rank {rank} · {name}[{i}, {j}] = {digits}"
                    sketch.add(Box(left, top, wide, high, rank, f"{name} {i} {j}", tint=tint, tip=tip))
                    size = fit_size(digits, wide - 3, min(10, high - 2))
                    if size >= 7:
                        line = top + high / 2 + size * BASELINE
                        sketch.add(Label(left + wide / 2, line, digits, size, "middle", gpu=rank, tint=tint))
            x += columns[name] * wide + _GAP
    x = float(_LEFT)
    for name, count in columns.items():
        size = fit_size(name, count * wide + _GAP - 2, 12)
        sketch.add(Label(x + count * wide / 2, 20, name, size, "middle", bold=True))
        x += count * wide + _GAP
    listed = series(heat.maps)
    ranks = say(en=plural(heat.ranks, "rank"), zh=f"{heat.ranks} 个 rank")
    return sketch.picture(lane.y(len(shown)) + 6, words or caption("heat", ranks=ranks, listed=listed))
