"""The picture of a split: the batch on top, below it a lane for each GPU with the rows it gets."""

from __future__ import annotations

from ..base.display import draws
from ..base.language import say
from ..plans.split import Split, split
from .picture import Box, Picture, Text, lane_size, sized
from .svg import to_svg

WIDTH = 720
_LEFT, _RIGHT, _TOP = 76, 126, 30
_BAR = 26
# Below this many pixels a row is not drawn apart from its neighbours.
_FINEST = 4.0


def split_picture(plan: Split) -> Picture:
    """Who gets which rows, as a :class:`Picture`: 0 to any number of rows, 1 to 64 GPUs and more."""
    lane, size = lane_size(plan.gpus)
    across = WIDTH - _LEFT - _RIGHT
    scale = across / max(plan.batch, 1)
    boxes, texts = [], [Text(_LEFT - 8, _TOP + _BAR * 0.68, say(en="batch", zh="批次"), 13, "end", bold=True)]
    rows = _rows(plan.batch)
    texts.append(Text(WIDTH - _RIGHT + 8, _TOP + _BAR * 0.68, rows, sized(rows, _RIGHT - 10, 13)))
    if plan.batch:
        texts += _ruler(plan.batch, scale)
    else:
        boxes.append(Box(_LEFT, _TOP, across, _BAR, dashed=True))
    first = _TOP + _BAR + 14
    for gpu, rows in enumerate(plan.rows_by_gpu):
        y = first + gpu * lane
        idle = rows == 0
        texts.append(Text(_LEFT - 8, y + lane / 2 + size * 0.35, f"cuda:{gpu}", size, "end", muted=idle))
        if idle:
            boxes.append(Box(_LEFT, y + 2, across, lane - 4, dashed=True, label=f"cuda:{gpu}"))
            texts.append(
                Text(
                    WIDTH - _RIGHT + 8,
                    y + lane / 2 + size * 0.35,
                    say(en="idle", zh="空闲"),
                    size,
                    muted=True,
                )
            )
            continue
        piece = plan.pieces[gpu]
        x, width = _LEFT + piece.start * scale, rows * scale
        boxes += _cells(gpu, piece, x, _TOP, scale, _BAR)
        boxes.append(Box(x, y + 2, width, lane - 4, gpu=gpu, label=str(piece)))
        short = plan.short is not None and plan.short.gpu == gpu
        note = _rows(rows) + (say(en=", short", zh="，不满") if short else "")
        fine = sized(note, _RIGHT - 10, size, short)
        texts.append(Text(WIDTH - _RIGHT + 8, y + lane / 2 + size * 0.35, note, fine, bold=short))
        span = f"{piece.start}–{piece.stop - 1}" if rows > 1 else f"{piece.start}"
        if width > len(span) * size * 0.62 + 4:
            texts.append(Text(x + width / 2, y + lane / 2 + size * 0.35, span, size, "middle", gpu=gpu))
    height = first + plan.gpus * lane + 8
    return Picture(WIDTH, height, tuple(boxes), tuple(texts), describe(plan))


def describe(plan: Split) -> str:
    """The split in one sentence."""
    used = len([rows for rows in plan.sizes if rows])
    sizes = _listed(plan)
    if not plan.batch:
        return say(
            en=f"No rows: all {plan.gpus} GPUs are idle.", zh=f"没有数据行：{plan.gpus} 块 GPU 全部空闲。"
        )
    text = say(
        en=f"{plan.batch} rows on {plan.gpus} GPU{'s' * (plan.gpus != 1)}: pieces of ceil({plan.batch}/{plan.gpus}) = "
        f"{_rows(plan.chunk)}, so {used} of {plan.gpus} work ({sizes})",
        zh=f"{plan.batch} 行分给 {plan.gpus} 块 GPU：每个分块 ⌈{plan.batch}/{plan.gpus}⌉ = {plan.chunk} 行，"
        f"{plan.gpus} 块中有 {used} 块工作（{sizes}）",
    )
    if plan.idle:
        first, last = plan.idle[0], plan.idle[-1]
        names = f"cuda:{first}" if first == last else f"cuda:{first}–cuda:{last}"
        text += say(en=f"; {names} idle", zh=f"；{names} 空闲")
    return text + say(en=".", zh="。")


@draws(Split)
def split_svg(plan: Split) -> str:
    """The split as SVG text, on a panel of its own so that it reads on any background."""
    return to_svg(split_picture(plan), panel=True)


def draw_split(plan: Split | int, gpus: int | None = None, *, ax=None):
    """Draw who gets which rows; returns the matplotlib Axes.

    plan   a :class:`labkit.plans.split.Split`, or the number of rows, with ``gpus`` beside it.
    ax     the Axes to draw into; a new figure if not given.
    """
    if not isinstance(plan, Split):
        plan = split(plan, gpus)
    from .figure import paint  # matplotlib is only wanted here

    return paint(lambda: split_picture(plan), ax)


def _listed(plan: Split) -> str:
    """``2, 2, 2``; long lists as ``63 × 2, 1``."""
    if len(plan.sizes) <= 10:
        return ", ".join(map(str, plan.sizes))
    full = sum(rows == plan.chunk for rows in plan.sizes)
    return f"{full} × {plan.chunk}" + (f", {plan.short.rows}" if plan.short else "")


def _cells(gpu, piece, x, y, scale, height):
    if scale < _FINEST:
        return [Box(x, y, piece.rows * scale, height, gpu=gpu, label=str(piece))]
    return [
        Box(x + at * scale, y, scale, height, gpu=gpu, label=f"cuda:{gpu} row {piece.start + at}")
        for at in range(piece.rows)
    ]


def _ruler(batch: int, scale: float) -> list[Text]:
    """Row numbers over the batch: the first, the last, and round ones between where there is room."""
    step = next(s for s in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, batch) if s * scale > 26 or s >= batch)
    marks = [row for row in range(0, batch, step) if row == 0 or (batch - 1 - row) * scale > 26]
    marks = marks + [batch - 1] if batch > 1 else marks
    return [Text(_LEFT + (row + 0.5) * scale, _TOP - 8, str(row), 11, "middle", muted=True) for row in marks]


def _rows(count: int) -> str:
    return say(en=f"{count} row{'s' * (count != 1)}", zh=f"{count} 行")
