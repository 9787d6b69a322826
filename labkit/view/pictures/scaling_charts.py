"""The picture of scaling: a step's time and efficiency against the number of GPUs."""

from __future__ import annotations

from ...base.language import say
from ...base.units import duration
from ...cost import Scaling
from ..captions import caption
from ..charts import Axis, Counts, Curve, charts_picture, times
from ..layout import together
from ..picture import Picture

# Of more counts, some are drawn.
_MOST_COUNTS = 128


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

    ours, perfect, short = (
        "data_parallel",
        say(en="perfect scaling", zh="理想扩展"),
        say(en="perfect", zh="理想"),
    )
    curves = (
        Curve("perfect", perfect, short, values("perfect"), dashed=True),
        Curve("ddp", "DistributedDataParallel", "DDP", values("ddp"), mark="disc"),
        Curve(ours, "DataParallel", "DataParallel", values(ours), strong=True, mark="square"),
    )
    axes = (time, Axis(share, 1.0, "{:.0%}".format, "{:.1%}".format))
    return charts_picture(curves, axes, Counts(counts, under), found.hardware, _description(found))


def _description(found: Scaling) -> str:
    """The prediction for the most GPUs."""
    count, perfect = found.counts[-1], found.seconds["perfect"][-1] or 0.0
    ddp, last = found.efficiency("ddp")[-1], found.efficiency("data_parallel")[-1]
    text = caption("scaling", rows=found.rows, gpus=count, time=duration(perfect, digits=4), ddp=ddp)
    if last is None:
        return text + say(en=", DataParallel cannot leave one machine.", zh="，DataParallel 则不能跨机器。")
    return text + say(en=f", DataParallel {last:.0%}.", zh=f"，DataParallel 达到 {last:.0%}。")
