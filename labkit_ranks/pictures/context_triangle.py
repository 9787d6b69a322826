"""Draw the triangle of causal attention by the rank that computes it, the ranks' time, and the bytes that they send."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby
from typing import Any

from labkit.base.language import say
from labkit.view.layout import Lanes, legend
from labkit.view.picture import WIDTH, Box, Label, Picture, Sketch

from ..plans.context import ContextRing, owners, sent
from .captions import caption

_LEFT, _TOP, _SIDE, _RIGHT = 12, 30, 320, 372
_LAYOUTS = {
    "contiguous": ("neighbouring tokens", "相邻"), "zig-zag": ("zig-zag", "之字形"), "striped": ("striped", "条纹"),
}  # fmt: skip


def context_picture(ring: ContextRing, step: int) -> Picture:
    """Draw what ``step`` computes in full colour, earlier steps pale, later ones paler, and waiting dashed."""
    sketch, cell = Sketch(), _SIDE / ring.tokens
    owner = owners(ring.tokens, ring.ranks, ring.layout)
    sketch.add(Label(_LEFT, 20, caption("context", "pairs"), 12, bold=True))
    for query, rank in enumerate(owner):
        y = _TOP + query * cell
        for source, run in groupby(range(query + 1), lambda key: owner[key]):
            keys, at = list(run), (rank - source) % ring.ranks
            place = _LEFT + keys[0] * cell, y, len(keys) * cell, cell
            label = f"query {query} keys {keys[0]}–{keys[-1]} step {at}"
            sketch.add(Box(*place, rank, label, tip=f"rank {rank}, {label}", **_look(at, step)))
    _time(sketch, ring, step)
    _bytes(sketch, ring.ranks)
    high = max(_TOP + _SIDE, _TOP + ring.ranks * 22 + 150) + 12
    looks = [(word, Box(0, high - 24, 14, 12, 0, f"legend {word}", **_look(at, 0)))
             for word, at in (("now", 0), ("before", -1), ("after", 1))]  # fmt: skip
    looks.append(("waits", Box(0, high - 24, 14, 12, None, "legend waits", dashed=True)))
    key = [(caption("context", word), [box]) for word, box in looks]
    sketch.add(*legend(_RIGHT, high - 14, key, text_offset=20, gap=18))
    busiest = sum(max(steps) for steps in ring.work())
    en, zh = _LAYOUTS[ring.layout]
    layout, pairs = say(en=en, zh=zh), ", ".join(map(str, ring.work()[step]))
    said = caption(
        "context", last=ring.ranks - 1, layout=layout, step=step, pairs=pairs, time=busiest, share=ring.efficiency,
    )  # fmt: skip
    return sketch.picture(high, said)


def _look(at: int, step: int) -> dict[str, Any]:
    """Return how pale step ``at`` is while ``step`` runs."""
    tint = 0.0 if at == step else 0.55 if at < step else 0.85
    return {"tint": tint, "faint": tint > 0}


def _time(sketch: Sketch, ring: ContextRing, step: int) -> None:
    """Draw each rank's work in each step of the ring; a step ends with its busiest rank."""
    work = ring.work()
    lane = Lanes(_TOP, _RIGHT + 56, 12, 22, 11)
    each = (WIDTH - _RIGHT - 68) / sum(map(max, work))
    sketch.add(Label(_RIGHT, 20, caption("context", "time", share=ring.efficiency), 12, bold=True))
    for rank in range(ring.ranks):
        sketch.add(lane.name(rank, f"rank {rank}"))
        x = lane.left
        for at, pairs in enumerate(work):
            wide, label = max(pairs) * each, f"rank {rank} step {at}"
            works = pairs[rank] * each
            if pairs[rank] < max(pairs):
                sketch.add(lane.bar(rank, x + works, wide - works, dashed=True, label=f"{label} waits"))
            if works:
                bar = lane.bar(rank, x, works, rank, label=label, tip=str(pairs[rank]))
                sketch.add(replace(bar, **_look(at, step)))
            x += wide


def _bytes(sketch: Sketch, ranks: int) -> None:
    """Draw what a rank sends in a layer's forward, three ways."""
    top = _TOP + ranks * 22 + 34
    found = sent(ranks)
    each = (WIDTH - _RIGHT - 150) / max(found.values())
    sketch.add(Label(_RIGHT, top - 8, caption("context", "bytes"), 12, bold=True))
    for at, (name, share) in enumerate(found.items()):
        y = top + 6 + at * 26
        sketch.add(Label(_RIGHT, y + 13, say(en=name, zh=name.replace("ring", "环形")), 11))
        sketch.add(Box(_RIGHT + 66, y, share * each, 17, -1, f"bytes {name}", tint=0.4))
        sketch.add(Label(_RIGHT + 72 + share * each, y + 13, f"{share:.2f}", 11))
