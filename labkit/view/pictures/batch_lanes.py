"""The picture of one pass over the data: a lane for each batch, cut into the pieces that GPUs get."""

from __future__ import annotations

from ...base.language import say
from ...base.numbers import plural
from ...plans.batches import Batches
from ...plans.split import Split
from ..captions import caption
from ..layout import Lanes, shortened
from ..picture import Picture, Sketch, Text
from .split_lanes import pieces_of, rows_text

_LEFT, _RIGHT, _TOP, _LANE, _SIZE = 84, 190, 12, 30, 13
# More batches than this are not drawn one by one: the first ones, a line that counts the others, the last.
_MOST = 12


def batches_picture(plan: Batches) -> Picture:
    """One pass; a row is equally wide in all batches."""
    left = min(max(_LEFT, 24 + _SIZE * 0.6 * len(f"batch {plan.total}")), 2 * _LEFT)
    lane = Lanes(_TOP, left, _RIGHT, _LANE, _SIZE)
    scale = lane.across / plan.batch_size
    shown = shortened(plan.total, most=_MOST, head=_MOST - 3, tail=2)
    sketch = Sketch()
    for at, number in lane.one_by_one(sketch, shown, _counted):
        batch, short = plan[number], number == plan.full
        sketch.add(
            lane.name(at, say(en=f"batch {number}", zh=f"批次 {number}")),
            *pieces_of(batch, left, lane.y(at) + 2, scale, _LANE - 4),
            *_labels(plan, batch, number, left, lane.line(at), scale),
            lane.note(at, _note(batch, short), bold=short),
        )
    count = len(shown)
    if plan.dropped:
        words = say(en=f"{plural(plan.dropped, 'row')}, dropped", zh=f"{plan.dropped} 行，丢弃")
        bar = lane.bar(count, left, plan.dropped * scale, dashed=True)
        sketch.add(bar, lane.note(count, words, muted=True))
        count += 1
    if not plan.rows:
        sketch.add(lane.aside(0, say(en="no rows", zh="没有数据行")))
    return sketch.picture(lane.y(max(count, 1)) + _TOP, _description(plan))


def _counted(numbers: range) -> str:
    more = numbers.stop - numbers.start  # len cannot say every number
    return say(en=f"… {more} more batches like these …", zh=f"…… 还有 {more} 个这样的批次 ……")


def _description(plan: Batches) -> str:
    text = caption("batches", plan=plan)
    if plan.short:
        text += say(en=f" and a short one of {plan.short}", zh=f"，外加一个只有 {plan.short} 行、不满的批次")
    if plan.dropped:
        text += say(en=f"; the last {plan.dropped} rows are dropped", zh=f"；最后 {plan.dropped} 行丢弃")
    if plan.gpus > 1:
        text += say(en=f"; each is split over {plan.gpus} GPUs", zh=f"；每个批次切分给 {plan.gpus} 块 GPU")
    return text + say(en=".", zh="。")


def _labels(plan: Batches, batch: Split, number: int, left: float, line: float, scale: float) -> list[Text]:
    """On one GPU the rows' numbers in the dataset; on several, how many rows each piece has."""
    first = number * plan.batch_size
    found = []
    for piece in batch.pieces:
        if plan.gpus > 1:
            words = str(piece.rows)
        else:
            words = f"{first + piece.start}–{first + piece.stop - 1}" if piece.rows > 1 else str(first)
        if piece.rows and piece.rows * scale > len(words) * _SIZE * 0.62 + 4:
            middle = left + (piece.start + piece.rows / 2) * scale
            found.append(Text(middle, line, words, _SIZE, "middle", gpu=piece.gpu))
    return found


def _note(batch: Split, short: bool) -> str:
    words = rows_text(batch.batch) + say(en=", short", zh="，不满") * short
    if batch.idle:
        words += say(en=f"; {len(batch.idle)} idle", zh=f"；{len(batch.idle)} 块空闲")
    return words
