"""The picture of a race: an all-reduce around a ring and one through GPU 0, against the number of GPUs."""

from __future__ import annotations

from ...base.language import say
from ...base.units import duration
from ...cost import Race
from ..captions import caption
from ..charts import Axis, Counts, Curve, charts_picture, decades
from ..picture import Picture

_UNITS = ((10**9, "GB"), (10**6, "MB"), (10**3, "kB"), (1, "B"))


def race_picture(found: Race) -> Picture:
    """Two charts: on the left the bytes over the busiest link, on the right the time."""
    size, unit = _unit(max(map(max, found.carried.values())) or 1.0)
    carried = {way: [value / size for value in values] for way, values in found.carried.items()}
    star, through = say(en="star", zh="星形"), say(en="star (through GPU 0)", zh="星形（经过 0 号 GPU）")
    ring = say(en="ring", zh="环形")
    curves = (
        Curve("star", through, star, (carried["star"], found.seconds["star"]), strong=True, mark="square"),
        Curve("ring", ring, ring, (carried["ring"], found.seconds["ring"]), mark="disc"),
    )
    # On these axes both ways can be read: the star is soon a thousand times the ring.
    link = say(en=f"busiest link, {unit} one way", zh=f"最忙的链路（单向，{unit}）")
    low, high = decades([*carried["star"], *carried["ring"]])
    axes = [Axis(link, high, "{:.4g}".format, f"{{:.4g}} {unit}".format, low)]
    low, high = decades([*found.seconds["star"], *found.seconds["ring"]])
    axes.append(Axis(say(en="all-reduce", zh="全归约"), high, duration, duration, low))
    counts = Counts(found.counts, say(en="number of GPUs (ranks)", zh="GPU 数（rank 数）"))
    return charts_picture(curves, axes, counts, found.hardware, _description(found))


def _unit(nbytes: float) -> tuple[int, str]:
    """The largest unit of which ``nbytes`` are at least one; decimal, as links are measured."""
    return next(((size, unit) for size, unit in _UNITS if nbytes >= size), _UNITS[-1])


def _description(found: Race) -> str:
    count, (scale, unit) = found.counts[-1], _unit(found.nbytes)
    size = f"{found.nbytes / scale:.4g} {unit}"
    facts = {way: found.carried[way][-1] / found.nbytes for way in ("ring", "star")}
    took = {f"{way}_time": duration(found.seconds[way][-1], digits=4) for way in ("ring", "star")}
    return caption("race", gpus=count, size=size, **facts, **took)
