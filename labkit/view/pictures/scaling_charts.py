"""The picture of scaling: a step's milliseconds and efficiency against the number of GPUs."""

from __future__ import annotations

from ...base.language import say
from ...base.numbers import plural
from ...cost import Scaling
from ..charts import HEIGHT, Axis, Style, chart, key, nice
from ..layout import together
from ..picture import Picture, Sketch, Text

_STYLES = (
    Style("perfect", dashed=True),
    Style("ddp", mark="disc"),
    Style("data_parallel", strong=True, mark="square"),
)
# Of more counts, some are drawn.
_MOST_COUNTS = 128


def scaling_picture(found: Scaling) -> Picture:
    """Two charts: milliseconds of a step on the left, efficiency on the right."""
    # Of each group of neighbours the last is drawn, and the first count of all.
    shown = sorted({0, *(group[-1] for group in together(len(found.counts), _MOST_COUNTS))})
    counts = [found.counts[n] for n in shown]
    names, sketch = method_names(), Sketch()
    short = names | {"perfect": say(en="perfect", zh="理想"), "ddp": "DDP"}
    sketch.add(*key(_STYLES, names))
    longest = max(s * 1e3 for times in found.seconds.values() for s in times if s is not None)
    under = say(en="number of GPUs", zh="GPU 数")
    if len(counts) < len(found.counts):
        under += say(
            en=f" ({len(counts)} of {len(found.counts)} counts)",
            zh=f"（{len(found.counts)} 个中画出 {len(counts)} 个）",
        )
    milliseconds = Axis(
        say(en="training step, ms", zh="每个训练步（毫秒）"),
        nice(longest),
        "{:.4g}".format,
        "{:.4g} ms".format,
    )
    efficiency = Axis(
        say(en="efficiency, % of perfect", zh="效率（占理想的百分比）"), 1.0, "{:.0%}".format, "{:.1%}".format
    )
    for at, axis in enumerate((milliseconds, efficiency)):
        curves = []
        for style in _STYLES:
            every = found.efficiency(style.key) if at else found.seconds[style.key]
            values = [every[n] for n in shown]
            scaled = values if at else [None if value is None else value * 1e3 for value in values]
            curves.append((style, scaled, names[style.key], short[style.key]))
        sketch.add(*chart(at, axis, counts, under, curves))
    sketch.add(Text(12, HEIGHT - 10, found.hardware, 11, muted=True))
    return sketch.picture(HEIGHT, _description(found))


def _description(found: Scaling) -> str:
    """The prediction for the most GPUs."""
    count, perfect = found.counts[-1], found.seconds["perfect"][-1] or 0.0
    ddp, last = found.efficiency("ddp")[-1], found.efficiency("data_parallel")[-1]
    text = say(
        en=f"{plural(found.rows, 'row')} on each of {plural(count, 'GPU')}: perfect scaling "
        f"takes {perfect * 1e3:.4g} ms a step; DDP reaches {ddp:.0%} of that throughput",
        zh=f"{count} 块 GPU，每块 {found.rows} 行：理想扩展每个训练步 {perfect * 1e3:.4g} ms；"
        f"DDP 达到其吞吐量的 {ddp:.0%}",
    )
    if last is None:
        return text + say(en=", DataParallel cannot leave one machine.", zh="，DataParallel 则不能跨机器。")
    return text + say(en=f", DataParallel {last:.0%}.", zh=f"，DataParallel 达到 {last:.0%}。")


def method_names() -> dict[str, str]:
    """What the methods are called in the language in use."""
    return {
        "perfect": say(en="perfect scaling", zh="理想扩展"),
        "ddp": "DistributedDataParallel",
        "data_parallel": "DataParallel",
    }
