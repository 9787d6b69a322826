"""Draw shards: a lane for each rank, a column for each kind of bytes, filled where the rank holds them."""

from __future__ import annotations

from collections.abc import Sequence

from labkit.base.language import say
from labkit.plans.shards import KINDS, Shards
from labkit.view.captions import caption as named
from labkit.view.layout import bar_lanes, choose_shown, legend
from labkit.view.picture import NARROW, Box, Label, Picture, Sketch

from .captions import caption

_GAP = 8


def shards_picture(plan: Shards) -> Picture:
    """Draw the shards of ``plan``. A byte has the same width in all columns; colours are kinds, not GPUs."""
    shown = choose_shown(plan.ranks, most=8, head=6, tail=1)
    wholes = {**plan.model_bytes, "activations": plan.activations}
    swatches = [Box(0, 12, 18, 12, colour, f"legend {kind}") for colour, kind in enumerate(wholes)]
    marks = [(named(kind), [swatch]) for kind, swatch in zip(wholes, swatches, strict=True)]
    key = legend(12, 22, marks, text_offset=24, gap=18, size=12, right=NARROW - 12)
    lane = bar_lanes(len(shown), max(text.y for text in key if isinstance(text, Label)) + 12)
    scale = (lane.width - _GAP * (len(wholes) - 1)) / max(sum(wholes.values()), 1)
    each = _gigabytes(plan.total)
    sketch, note = Sketch(), each + say(en=", too much", zh="，超出") * plan.exceeds_capacity

    def label_rest(rest: Sequence[int]) -> str:
        return caption("shards", "more", first=rest[0], last=rest[-1])

    for at, rank in lane.iterate_shown(sketch, shown, label_rest):
        sketch.add(lane.name(at, f"rank {rank}"), lane.note(at, note, bold=plan.exceeds_capacity))
        x = float(lane.left)
        for colour, (kind, nbytes) in enumerate(wholes.items()):
            held, wide = (plan.rank_bytes(kind) if kind in KINDS else nbytes) * scale, nbytes * scale
            tip = f"rank {rank} · {named(kind)} · {_gigabytes(round(held / scale))}"
            sketch.add(lane.bar(at, x, wide, dashed=held < wide, label=f"rank {rank} whole {kind}"))
            start = x + min(rank * held, wide - held) if held < wide else x
            sketch.add(lane.bar(at, start, held, colour, label=f"rank {rank} {kind}", tip=tip))
            x += wide + _GAP
    sketch.add(*key)
    own, model = plan.total - plan.activations, sum(plan.model_bytes.values())
    words = caption("shards", plan=plan, each=each, own=_gigabytes(own))
    if own < model:
        words += say(en=" ", zh="") + caption("shards", "whole", model=_gigabytes(model))
    if plan.capacity is not None:
        verdict = "over" if plan.exceeds_capacity else "fits"
        words += caption("shards", verdict, capacity=_gigabytes(plan.capacity))
    return sketch.picture(lane.y(len(shown)) + 6, words, NARROW)


def _gigabytes(nbytes: int) -> str:
    """Format bytes in units of 10⁹, as papers and data sheets do."""
    return f"{nbytes / 1e9:.3g} GB"
