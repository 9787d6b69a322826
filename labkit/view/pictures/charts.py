"""The pictures that are charts: how training scales, a race of two all-reduces, trainings beside one another."""

from __future__ import annotations

from typing import Any

from ...base.language import say
from ...base.units import duration
from ...cost import Race, Scaling
from ...trace.curves import Curves
from ..captions import caption
from ..charts import Axis, Counts, Curve, charts_picture, decades, nice, times
from ..layout import together
from ..picture import Picture

# Of more counts, some are drawn.
_MOST_COUNTS = 128
_UNITS = ((10**9, "GB"), (10**6, "MB"), (10**3, "kB"), (1, "B"))
# The names of trainings that are words; any other is shown as it was given.
_NAMED = ("one_gpu", "data_parallel", "mean_of_means")
# By the order in which they are given: so curves that lie on one another can all be seen.
_SQUARES = {"dashed": True, "mark": "square"}
_LOOKS: tuple[dict[str, Any], ...] = ({"strong": True}, {"mark": "disc"}, _SQUARES, {"dashed": True}, {})


def scaling_picture(found: Scaling) -> Picture:
    """Two charts: the time of a step on the left, efficiency on the right."""
    # Of each group of neighbours the last is drawn, and the first count of all.
    shown = sorted({0, *(group[-1] for group in together(len(found.counts), _MOST_COUNTS))})
    counts = [found.counts[n] for n in shown]
    some = ["some"] if len(counts) < len(found.counts) else []
    under = caption("scaling", "counts", *some, shown=len(counts), all=len(found.counts))
    share = say(en="efficiency, % of perfect", zh="效率（占理想的百分比）")
    seconds = {way: [found.seconds[way][n] for n in shown] for way in ("perfect", "ddp", "data_parallel")}
    longest = max(s for values in seconds.values() for s in values if s is not None)
    time, scale = times("training step", "每个训练步", longest)

    def values(way: str) -> list[list[float | None]]:
        shares = found.efficiency(way)
        return [[s and s * scale for s in seconds[way]], [shares[n] for n in shown]]

    ours = "data_parallel"
    perfect, short = say(en="perfect scaling", zh="理想扩展"), say(en="perfect", zh="理想")
    curves = (
        Curve("perfect", perfect, short, values("perfect"), dashed=True),
        Curve("ddp", "DistributedDataParallel", "DDP", values("ddp"), mark="disc"),
        Curve(ours, "DataParallel", "DataParallel", values(ours), strong=True, mark="square"),
    )
    axes = (time, Axis(share, 1.0, "{:.0%}".format, "{:.1%}".format))
    return charts_picture(curves, axes, Counts(counts, under), found.hardware, _scaling_in_words(found))


def _scaling_in_words(found: Scaling) -> str:
    """The prediction for the most GPUs."""
    count, perfect = found.counts[-1], found.seconds["perfect"][-1] or 0.0
    ddp, last = found.efficiency("ddp")[-1], found.efficiency("data_parallel")[-1]
    text = caption("scaling", rows=found.rows, gpus=count, time=duration(perfect, digits=4), ddp=ddp)
    if last is None:
        return text + say(en=", DataParallel cannot leave one machine.", zh="，DataParallel 则不能跨机器。")
    return text + say(en=f", DataParallel {last:.0%}.", zh=f"，DataParallel 达到 {last:.0%}。")


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
    return charts_picture(curves, axes, counts, found.hardware, _race_in_words(found))


def _unit(nbytes: float) -> tuple[int, str]:
    """The largest unit of which ``nbytes`` are at least one; decimal, as links are measured."""
    return next(((size, unit) for size, unit in _UNITS if nbytes >= size), _UNITS[-1])


def _race_in_words(found: Race) -> str:
    count, (scale, unit) = found.counts[-1], _unit(found.nbytes)
    size = f"{found.nbytes / scale:.4g} {unit}"
    facts = {way: found.carried[way][-1] / found.nbytes for way in ("ring", "star")}
    took = {f"{way}_time": duration(found.seconds[way][-1], digits=4) for way in ("ring", "star")}
    return caption("race", gpus=count, size=size, **facts, **took)


def curves_picture(found: Curves) -> Picture:
    """One chart: upwards the loss, to the right the steps."""
    names = {name: caption("curve", name) if name in _NAMED else name for name in found.losses}
    curves = []
    for at, (name, values) in enumerate(found.losses.items()):
        curves.append(Curve(name, names[name], f"{values[-1]:.2f}", [values], **_LOOKS[at % len(_LOOKS)]))
    steps = range(len(next(iter(found.losses.values()))))
    most = max(max(values) for values in found.losses.values())
    axis = Axis(say(en="loss", zh="损失"), nice(most or 1.0), "{:.4g}".format, "{:.4g}".format)
    told = say(en="; ", zh="；").join(
        say(en=f"{names[name]}: from {values[0]:.2f} to {values[-1]:.2f}",
            zh=f"{names[name]}：从 {values[0]:.2f} 到 {values[-1]:.2f}")
        for name, values in found.losses.items()
    )  # fmt: skip
    unit = say(en="steps", zh="步")
    return charts_picture(curves, [axis], Counts(steps, unit, unit), "", caption("curves", told=told))
