"""The picture of a split: the batch on top, below it a lane for each GPU with the rows it gets."""

from __future__ import annotations

from ...base.language import say
from ...base.numbers import plural
from ...plans.split import Split
from ..captions import caption
from ..layout import MOST_LANES, devices, gpu_lanes, sized, text_width, together
from ..picture import WIDTH, Box, Picture, Sketch, Text

_LEFT, _RIGHT, _TOP = 76, 126, 30
_BAR = 26
# Below this many pixels a row is not drawn apart from its neighbours.
_FINEST = 4.0


def split_picture(plan: Split) -> Picture:
    """The pieces of 0 to any number of rows; of very many GPUs the first and the last."""
    working = len(plan.sizes) if plan.batch else 0
    shown, lane = gpu_lanes(working, _TOP + _BAR + 14, _LEFT, _RIGHT, len(plan.idle))
    scale = lane.across / max(plan.batch, 1)
    rows, line = rows_text(plan.batch), _TOP + _BAR * 0.68
    sketch = Sketch()
    sketch.add(
        Text(_LEFT - 8, line, say(en="batch", zh="批次"), 13, "end", bold=True),
        Text(WIDTH - _RIGHT + 8, line, rows, sized(rows, _RIGHT - 10, 13)),
    )
    if plan.batch:
        sketch.add(*_ruler(plan.batch, scale))
    else:
        sketch.add(Box(_LEFT, _TOP, lane.across, _BAR, dashed=True))
    # The batch is cut into rows where they can be seen apart, else into pieces.
    if plan.batch and scale < _FINEST:
        sketch.add(*pieces_of(plan, _LEFT, _TOP, scale, _BAR))
    for at, gpu in lane.one_by_one(sketch, shown, lambda gpus: _counted(plan, gpus)):
        if gpu >= len(plan.sizes) or not plan.sizes[gpu]:
            sketch.add(
                lane.name(at, f"cuda:{gpu}", muted=True),
                lane.bar(at, _LEFT, lane.across, dashed=True, label=f"cuda:{gpu}"),
                lane.note(at, say(en="idle", zh="空闲"), muted=True),
            )
            continue
        piece = plan.pieces[gpu]
        x, width = _LEFT + piece.start * scale, piece.rows * scale
        if scale >= _FINEST:  # the rows of the piece, one by one, on top
            for row in range(piece.rows):
                label = f"cuda:{gpu} row {piece.start + row}"
                sketch.add(Box(x + row * scale, _TOP, scale, _BAR, gpu, label))
        short = piece == plan.short
        sketch.add(
            lane.name(at, f"cuda:{gpu}"),
            lane.bar(at, x, width, gpu, label=str(piece)),
            lane.note(at, rows_text(piece.rows) + say(en=", short", zh="，不满") * short, bold=short),
        )
        span = f"{piece.start}–{piece.stop - 1}" if piece.rows > 1 else f"{piece.start}"
        wanted = text_width(span, lane.size) + 4
        if width > wanted:
            sketch.add(Text(x + width / 2, lane.line(at), span, lane.size, "middle", gpu=gpu))
        elif x + width + wanted + 4 < WIDTH - _RIGHT:  # beside it, where there is room
            sketch.add(Text(x + width + 4, lane.line(at), span, lane.size))
        else:
            sketch.add(Text(x - 4, lane.line(at), span, lane.size, "end"))
    return sketch.picture(lane.y(len(shown)) + 8, _description(plan))


def _description(plan: Split) -> str:
    if not plan.batch:
        return caption("split", "no-rows", gpus=plan.gpus)
    text = caption("split", plan=plan, used=len(plan.pieces))
    if plan.idle:
        names = devices(range(plan.idle[0], plan.gpus))
        text += say(en=f"; {names} idle", zh=f"；{names} 空闲")
    return text + say(en=".", zh="。")


def rows_text(count: int) -> str:
    """``1 row``, ``2 rows``."""
    return say(en=plural(count, "row"), zh=f"{count} 行")


def pieces_of(plan: Split, x: float, y: float, scale: float, height: float) -> list[Box]:
    """A batch in one bar, cut into the pieces that GPUs get; neighbours as one where they are very many."""
    boxes = []
    for group in together(len(plan.pieces), MOST_LANES):
        first, last = plan.pieces[group[0]], plan.pieces[group[-1]]
        label = str(first) if first is last else f"{devices(group)} rows {first.start}..{last.stop - 1}"
        if rows := last.stop - first.start:
            boxes.append(Box(x + first.start * scale, y, rows * scale, height, first.gpu, label))
    return boxes


def _counted(plan: Split, gpus: range) -> str:
    """A line about GPUs that are not drawn one by one."""
    if gpus[0] >= len(plan.pieces) or not plan.batch:
        return caption("split", "idle", where=devices(gpus), gpus=len(gpus))
    return caption("split", "working", where=devices(gpus), gpus=len(gpus), rows=plan.chunk)


def _ruler(batch: int, scale: float) -> list[Text]:
    """Row numbers over the batch: the first, the last, and round ones between where there is room."""
    step = next(s for s in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, batch) if s * scale > 26)
    marks = [row for row in range(0, batch, step) if row == 0 or (batch - 1 - row) * scale > 26]
    marks = marks + [batch - 1] if batch > 1 else marks
    return [Text(_LEFT + (row + 0.5) * scale, _TOP - 8, str(row), 11, "middle", muted=True) for row in marks]
