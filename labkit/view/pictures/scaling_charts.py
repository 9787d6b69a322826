"""The picture of scaling: a step's time and efficiency against the number of GPUs."""

from __future__ import annotations

from ...base.language import say
from ...base.units import duration
from ...cost import Scaling
from ..captions import caption
from ..charts import Axis, Style, charts_picture, times
from ..layout import together
from ..picture import Picture

_STYLES = (
    Style("perfect", dashed=True),
    Style("ddp", mark="disc"),
    Style("data_parallel", strong=True, mark="square"),
)
# Of more counts, some are drawn.
_MOST_COUNTS = 128


def scaling_picture(found: Scaling) -> Picture:
    """Two charts: the time of a step on the left, efficiency on the right."""
    # Of each group of neighbours the last is drawn, and the first count of all.
    shown = sorted({0, *(group[-1] for group in together(len(found.counts), _MOST_COUNTS))})
    counts = [found.counts[n] for n in shown]
    names = {
        "perfect": say(en="perfect scaling", zh="理想扩展"),
        "ddp": "DistributedDataParallel",
        "data_parallel": "DataParallel",
    }
    ends = names | {"perfect": say(en="perfect", zh="理想"), "ddp": "DDP"}
    some = ["some"] if len(counts) < len(found.counts) else []
    under = caption("scaling", "counts", *some, shown=len(counts), all=len(found.counts))
    share = say(en="efficiency, % of perfect", zh="效率（占理想的百分比）")
    seconds, efficiency = {}, {}
    for style in _STYLES:
        found_seconds, shares = found.seconds[style.key], found.efficiency(style.key)
        seconds[style.key] = [found_seconds[n] for n in shown]
        efficiency[style.key] = [shares[n] for n in shown]
    measured = [
        times("training step", "每个训练步", seconds),
        (Axis(share, 1.0, "{:.0%}".format, "{:.1%}".format), efficiency),
    ]
    return charts_picture(_STYLES, names, ends, counts, under, measured, found.hardware, _description(found))


def _description(found: Scaling) -> str:
    """The prediction for the most GPUs."""
    count, perfect = found.counts[-1], found.seconds["perfect"][-1] or 0.0
    ddp, last = found.efficiency("ddp")[-1], found.efficiency("data_parallel")[-1]
    text = caption("scaling", rows=found.rows, gpus=count, time=duration(perfect, digits=4), ddp=ddp)
    if last is None:
        return text + say(en=", DataParallel cannot leave one machine.", zh="，DataParallel 则不能跨机器。")
    return text + say(en=f", DataParallel {last:.0%}.", zh=f"，DataParallel 达到 {last:.0%}。")
