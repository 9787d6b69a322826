"""Draw tokens on their way to experts and back, with the table of counts; below, backward and the router's gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

from labkit.view.layout import BASELINE, Lanes, fit_size, legend
from labkit.view.palette import CPU
from labkit.view.picture import Box, Label, Line, Picture, Sketch

from ..plans.experts import TOKENS, Routing
from .captions import caption

_TOKENS, _EXPERTS, _RESULTS, _TABLE, _END = 66, 222, 462, 586, 708  # left edges of the columns
_SENT = _TOKENS + 98.0  # where arrows to the experts begin
_BOX, _PITCH, _DOT, _HIGH = 184, 12.0, 9.0, 36.0
_DEEP = 54.0  # height of a lane in backward, so that the router's bars can be compared


def experts_picture(routing: Routing) -> Picture:
    """Draw forward above, backward below: a lane for each rank, and for the expert on it."""
    sketch, ranks = Sketch(), range(routing.ranks)
    forward = Lanes(46, _TOKENS, 0, _HIGH, 12)
    backward = Lanes(forward.y(routing.ranks) + 72, _TOKENS, 0, _DEEP, 12)
    counts = routing.counts
    looks = [(caption("experts", name), [Line(0, 14, 22, 14, arrow=True, **_arrow(count))])
                  for name, count in (("few", 1), ("some", 3), ("many", 6))]  # fmt: skip
    sketch.add(*legend(_RESULTS, 18, looks, text_offset=28, gap=16))
    for lanes, direction in ((forward, "forward"), (backward, "backward")):
        sketch.add(Label(12, lanes.top - 28, caption("experts", direction), 13, bold=True))
        for column, x in (("left", _TOKENS), ("middle", _EXPERTS), ("right", _RESULTS), ("table", _TABLE)):
            words = caption("experts", f"{direction}-{column}")
            room = _END - x if column == "table" else _BOX if column == "middle" else 116
            sketch.add(Label(x, lanes.top - 8, words, fit_size(words, room, 11), muted=True))
        for rank in ranks:
            sketch.add(lanes.name(rank, f"rank {rank}"))
            box = lanes.bar(rank, _EXPERTS, _BOX, label=f"{direction} expert {rank}")
            sketch.add(box)
        turn = 1 if direction == "forward" else -1
        for rank, expert in product(ranks, ranks):
            heights = lanes.y(rank) + lanes.high / 2, lanes.y(expert) + lanes.high / 2
            ways = (
                ((_SENT, _EXPERTS - 4.0), heights),
                ((_EXPERTS + _BOX + 4.0, _RESULTS - 4.0), heights[::-1]),
            )
            for across, down in ways:
                if count := counts[rank][expert]:
                    (x1, x2), (y1, y2) = across[::turn], down[::turn]
                    sketch.add(Line(x1, y1, x2, y2, arrow=True, **_arrow(count)))
    _draw_tokens(sketch, routing, forward, _TOKENS, "token", lambda rank, token: True)
    sent = {row[:2] for row in routing.kept}
    for lanes, left, label in ((forward, _RESULTS, "result"), (backward, _RESULTS, "gradient")):
        _draw_tokens(sketch, routing, lanes, left, label, lambda rank, token: (rank, token) in sent)
    _draw_rows(sketch, routing, forward)
    _draw_table(sketch, counts, forward)
    for expert in ranks:
        taken = sum(row[expert] for row in counts)
        foot = backward.y(expert) + _DEEP / 2 + 11 * BASELINE
        for key, lower in (("whole", -7), ("times", 7)) if taken else (("none", -7), ("zero", 7)):
            words = caption("experts", key, expert=expert, rows=taken, ranks=routing.ranks)
            sketch.add(
                Label(_EXPERTS + _BOX / 2, foot + lower, words, fit_size(words, _BOX - 8, 11), "middle")
            )
    whole = routing.gradient(ranks)
    parts = [routing.gradient([rank]) for rank in ranks]
    most = max([*map(abs, whole), *(abs(value) for part in parts for value in part), 1e-9])
    for rank, part in enumerate(parts):
        middle = backward.y(rank) + _DEEP / 2
        _draw_bars(sketch, part, whole, most, _TOKENS, middle, TOKENS * _PITCH, _DEEP / 2 - 2, rank)
    wide = _END - _TABLE
    _draw_bars(sketch, whole, whole, most, _TABLE, backward.top + routing.ranks * _DEEP / 2, wide, _DEEP, CPU)
    busiest = max(len(rows) for rows in routing.arrivals)
    rows = sum(map(len, routing.arrivals))
    facts = {
        "ranks": routing.ranks, "k": min(routing.k, routing.ranks), "rows": busiest,
        "times": f"{busiest * routing.ranks / rows:.1f}", "dropped": rows - len(routing.kept), "all": rows,
        "far": f"{max(map(routing.distance, ranks)):.0%}",
    }  # fmt: skip
    return sketch.picture(backward.y(routing.ranks) + 8, caption("experts", **facts))


def _arrow(count: int) -> dict[str, bool]:
    """Return how an arrow for ``count`` rows looks."""
    return {"muted": count < 3, "strong": count > 5}


def _draw_tokens(
    sketch: Sketch, routing: Routing, lanes: Lanes, left: int, label: str, there: object
) -> None:
    for rank in range(routing.ranks):
        for token in range(TOKENS):
            x, y = left + token * _PITCH, lanes.y(rank) + (lanes.high - _DOT) / 2
            known = there(rank, token)  # type: ignore[operator]
            name = f"{label} {token} of rank {rank}"
            sketch.add(Box(x, y, _DOT, _DOT, rank if known else None, name, not known, round=True))


def _draw_rows(sketch: Sketch, routing: Routing, lanes: Lanes) -> None:
    """Draw the rows of each expert in order, and a line at its capacity."""
    most = max(len(rows) for rows in routing.arrivals) + 2
    pitch = min(_PITCH, (_BOX - 10) / most)
    wide = min(_DOT, pitch * 0.85)
    for expert, rows in enumerate(routing.arrivals):
        y, x = lanes.y(expert), _EXPERTS + 5.0
        for at, (rank, token, _) in enumerate(rows):
            kept = at < routing.room
            name = f"expert {expert} row {at}" if kept else f"expert {expert} drops row {at}"
            place = x + at * pitch, y + (_HIGH - _DOT) / 2, wide, _DOT
            tip = f"rank {rank}, token {token}"
            sketch.add(Box(*place, rank if kept else None, name, not kept, tip=tip, round=True))
        if routing.room <= most:
            edge = x + routing.room * pitch - (pitch - wide) / 2
            sketch.add(Line(edge, y + 1, edge, y + _HIGH - 1, strong=True, over=True))


def _draw_table(sketch: Sketch, counts: Sequence[Sequence[int]], lanes: Lanes) -> None:
    wide, most = (_END - _TABLE) / len(counts), max(1, *(max(line) for line in counts))
    for rank, line in enumerate(counts):
        for expert, count in enumerate(line):
            tint = 0.95 - 0.5 * count / most
            tip = f"rank {rank} → expert {expert}"
            bar = lanes.bar(rank, _TABLE + expert * wide, wide - 2, rank, tint=tint, label=tip, tip=tip)
            box = replace(bar, faint=True)
            middle = box.x + box.width / 2, box.y + box.height / 2 + 12 * BASELINE
            sketch.add(box, Label(*middle, str(count), 12, "middle"))
    for expert in range(len(counts)):
        total = sum(line[expert] for line in counts)
        place = _TABLE + (expert + 0.5) * wide - 1, lanes.y(len(counts)) + 15
        sketch.add(Label(*place, str(total), 12, "middle", bold=True))
    sketch.add(Label(_TABLE - 8, lanes.y(len(counts)) + 15, "Σ", 12, "end", muted=True))


def _draw_bars(
    sketch: Sketch, part: Sequence[float], whole: Sequence[float], most: float, left: float, middle: float,
    width: float, high: float, colour: int,
) -> None:  # fmt: skip
    """Draw a bar for each expert, up or down from ``middle``, and one GPU's bar as an outline over it."""
    each = width / len(part)
    sketch.add(Line(left, middle, left + width, middle, muted=True))
    for expert, (value, right) in enumerate(zip(part, whole, strict=True)):
        x = left + expert * each + each * 0.15
        for number, gpu, wide in ((value, colour, each * 0.4), (right, None, each * 0.7)):
            tall = abs(number) / most * high
            tip = f"{number:+.4f}"
            label = f"router {expert}" if gpu is None else f"router {expert} of {colour}"
            sketch.add(Box(x, middle - tall * (number > 0), wide, tall, gpu, label, tip=tip))
