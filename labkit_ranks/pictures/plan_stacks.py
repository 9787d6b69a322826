"""Draw plans: a GPU's memory and a step's time by parts, and the front of the best plans."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import floor, log10

from labkit.base.language import say
from labkit.base.units import bytes_text, duration
from labkit.cost.plan import Forecast
from labkit.cost.search import Plans
from labkit.view.layout import MOST_LANES, bar_lanes, fit_size, legend
from labkit.view.palette import CPU
from labkit.view.picture import NARROW, Box, Label, Line, Picture, Sketch
from labkit.view.pictures.charts import nice

from .captions import caption

# The colour of each part, different from its neighbours'; and the hatched parts.
_COLOURS = {
    "weights": 0, "gradients": 1, "optimizer": 2, "activations": 3, "buckets": 4,
    "compute": 0, "tensor": 1, "experts": 3, "pipeline": 4, "bubble": 7, "data": 5, "waiting": 5, "step": 2,
}  # fmt: skip
_HATCHED = ("gradients", "bubble")

Row = tuple[str, Mapping[str, float]]


def draw_stacks(
    sketch: Sketch, top: float, title: str, rows: Sequence[Row], format_value: Callable[[float], str],
    limit: float = 0.0, limit_label: str = "", scale: float = 0.0,
) -> float:  # fmt: skip
    """Draw a stacked bar for each row, on a common scale, with a line at ``limit``; return the lower edge.

    scale   the value that takes the whole width; 0 for the largest.
    """
    # A piece below a five-hundredth of its bar cannot be seen.
    kinds = [kind for kind in _COLOURS if any(row.get(kind, 0) > sum(row.values()) / 500 for _, row in rows)]
    marks = [
        (caption("plan", kind), [Box(0, top + 14, 18, 12, _COLOURS[kind], f"legend {kind}", hatched=kind in _HATCHED)])
        for kind in kinds
    ]  # fmt: skip
    key = legend(12, top + 24, marks, text_offset=24, gap=12, size=12, right=NARROW - 12)
    sketch.add(Label(12, top, title, 13, bold=True), *key)
    low = max([text.y for text in key if isinstance(text, Label)], default=top)
    most = max([sum(row.values()) for _, row in rows] + [limit, scale]) or 1.0
    lane = bar_lanes(len(rows), low + 10)
    for at, (name, row) in enumerate(rows):
        x, whole = float(lane.left), sum(row.values())
        for kind in kinds:
            value = row.get(kind, 0.0)
            width = max(value, 0.0) / most * lane.width
            if width > 0:
                tip = f"{name} · {caption('plan', kind)} · {format_value(value)}"
                box = lane.bar(at, x, width, _COLOURS[kind], label=f"{name} {kind}", tip=tip)
                sketch.add(replace(box, hatched=kind in _HATCHED))
            x += width
        over = bool(limit) and whole > limit
        words = format_value(whole) + (say(en=", too much", zh="，超出") if over else "")
        sketch.add(lane.name(at, name), lane.note(at, words, bold=over))
    bottom = lane.y(len(rows))
    if limit:
        words = limit_label or say(en=f"usable {format_value(limit)}", zh=f"可用 {format_value(limit)}")
        sketch.add(*lane.limit(range(len(rows)), lane.left + limit / most * lane.width, words, len(rows)))
        bottom += 16
    return bottom + 18


def forecast_picture(rows: Sequence[tuple[str, Forecast]], before: Forecast | None = None) -> Picture:
    """Draw the memory and the time of plans, by parts; and, on the same scale, the time of the plan ``before``."""
    sketch = Sketch()
    bottom = _draw_forecasts(sketch, 22, rows, before)
    return sketch.picture(bottom - 8, _describe_forecast(rows[0][1]), NARROW)


def _draw_forecasts(
    sketch: Sketch, top: float, rows: Sequence[tuple[str, Forecast]], before: Forecast | None = None
) -> float:
    memory = [(name, one.memory) for name, one in rows]
    timed = [*rows, (caption("plan", "before"), before)] if before else rows
    times = [
        (name, {"step" if k == "optimizer" else k: v for k, v in one.parts.items()}) for name, one in timed
    ]
    bottom = draw_stacks(sketch, top, caption("plan", "memory"), memory, _bytes, rows[0][1].gpu.usable)
    title, scale = caption("plan", "time"), 0.0
    if len(rows) == 1:  # few scales, so that pictures of other plans can be compared
        longest = max(one.seconds for _, one in timed)
        power = 10.0 ** floor(log10(longest))
        scale = next(power * step for step in (1, 2, 5, 10) if power * step >= longest)
        title += say(en=f" (the whole width is {duration(scale)})", zh=f"（总宽 {duration(scale)}）")
    return draw_stacks(sketch, bottom + 8, title, times, duration, scale=scale)


def plans_picture(found: Plans) -> Picture:
    """Draw the best plans by parts, and below all fitting plans as points; no plan beats those on the line."""
    shown = (found.fitting or tuple(sorted(found.others, key=lambda one: one.peak)))[:6]
    sketch = Sketch()
    top = _draw_forecasts(sketch, 22, [(_name(one), one) for one in shown])
    if len(found.fitting) < 2:
        return sketch.picture(top, _describe_forecast(shown[0]), NARROW)
    tall, left, across = 170.0, 70.0, NARROW - 100.0
    fast, most = nice(max(one.tokens for one in found.fitting)), found.gpu.usable
    words = caption("plan", "front")
    sketch.add(Label(12, top + 10, words, fit_size(words, NARROW - 24, 12, bold=True), bold=True))
    top += 26
    for share in (0, 0.25, 0.5, 0.75, 1):
        y = top + tall * (1 - share)
        sketch.add(Line(left, y, left + across, y, muted=True))
        sketch.add(Label(left - 6, y + 4, f"{fast * share:,.0f}", 10.5, "end", muted=True))
        x = left + across * share
        sketch.add(Label(x, top + tall + 16, _bytes(most * share), 10.5, "middle", muted=True))

    def place(one: Forecast) -> tuple[float, float]:
        return left + across * one.peak / most, top + tall * (1 - one.tokens / fast)

    front = [place(one) for one in found.front]
    for before, after in zip(front, front[1:], strict=False):
        sketch.add(Line(*before, after[0], before[1]), Line(after[0], before[1], *after))
    best = set(map(id, found.front))
    for one in found.fitting:
        x, y = place(one)
        half, gpu, tint = (3.5, 2, 0.0) if id(one) in best else (2.0, CPU, 0.6)
        tip = f"{one.plan} · {_bytes(one.peak)} · {one.tokens:,.0f} token/s/GPU"
        place_of = x - half, y - half, 2 * half, 2 * half
        sketch.add(Box(*place_of, gpu, str(one.plan), tip=tip, round=True, tint=tint))
    return sketch.picture(top + tall + 30, _describe_forecast(shown[0]), NARROW)


def ranks_memory_picture(rows: Sequence[Row], limit: float, description: str) -> Picture:
    """Draw the memory of ranks' GPUs at the peak, by kind, and the limit if a rank uses a tenth of it."""
    sketch = Sketch()
    limit = limit if max(sum(row.values()) for _, row in rows) > limit / 10 else 0.0
    label = say(en=f"the GPU has {_bytes(limit)}", zh=f"GPU 共 {_bytes(limit)}")
    title = caption("plan", "memory-of-ranks")
    bottom = draw_stacks(sketch, 22, title, rows[:MOST_LANES], _bytes, limit, label)
    return sketch.picture(bottom, description, NARROW)


def _name(one: Forecast) -> str:
    plan = one.plan
    again = " R" if plan.recompute else ""
    return f"dp{plan.dp} tp{plan.tp} pp{plan.pp} Z{plan.stage} {plan.micro}×{plan.many}{again}"


def _bytes(value: float) -> str:
    return bytes_text(int(value)) if value else "0"


def _describe_forecast(one: Forecast) -> str:
    facts = {"plan": one.plan, "peak": _bytes(one.peak), "usable": _bytes(one.gpu.usable)}
    words = caption("plan", "described", **facts, step=duration(one.seconds), tokens=f"{one.tokens:,.0f}")
    return words if one.fits else caption("plan", "too-much", **facts)
