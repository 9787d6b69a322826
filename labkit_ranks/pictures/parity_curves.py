"""Draw the losses of several layouts, and beside them their differences from the first on a logarithmic scale."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from labkit.base.language import say
from labkit.view.picture import Picture
from labkit.view.pictures.charts import Axis, Counts, Curve, charts_picture, decades, nice

# Looks by order, so that curves that lie on one another can all be seen.
_LOOKS: tuple[dict[str, Any], ...] = (
    {"strong": True}, {"mark": "disc"}, {"dashed": True, "mark": "square"}, {"dashed": True}, {},
)  # fmt: skip
# The least difference drawn.
_LEAST = 1e-9


def parity_picture(losses: Mapping[str, Sequence[float]], note: str) -> Picture:
    """Draw two charts: losses, and relative differences from the first training."""
    there = next(iter(losses.values()))
    steps, curves, gaps = len(there), list[Curve](), list[float]()
    for at, (name, values) in enumerate(losses.items()):
        known = zip(values, there, strict=False)
        off = [max(abs(a - b) / max(abs(b), 1e-30), _LEAST) if at else None for a, b in known]
        gaps += [gap for gap in off if gap is not None]
        padding = [None] * (steps - len(off))
        shown = [[*values[:steps], *padding], [*off, *padding]]
        curves.append(Curve(f"layout {at + 1}", name, f"[{at + 1}]", shown, **_LOOKS[at % len(_LOOKS)]))
    low, high = decades([_LEAST, *gaps])
    most = nice(max(max(some) for some in losses.values()))
    loss = Axis(say(en="loss", zh="损失"), most, "{:.4g}".format, "{:.6g}".format)
    gap = Axis(say(en="difference from [1]", zh="与 [1] 的差"), high, "{:.0e}".format, "{:.1e}".format, low)
    unit = say(en="step", zh="步")
    return charts_picture(curves, [loss, gap], Counts(range(1, steps + 1), unit, unit), note, note)
