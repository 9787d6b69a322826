"""The picture of one pass over the data: a lane for each batch, cut into the pieces that GPUs get."""

from __future__ import annotations

from ..base.display import draws
from ..base.language import say
from ..plans.split import Batches, Split, batches
from .picture import Box, Picture, Text, sized
from .svg import to_svg

WIDTH = 720
_LEFT, _RIGHT, _TOP, _LANE, _SIZE = 84, 190, 12, 30, 13
# More batches than this are not drawn one by one: the first ones, a line that counts the others, the last.
_MOST = 12


def batches_picture(plan: Batches) -> Picture:
    """Batches as a :class:`Picture`; a row is equally wide in all of them."""
    left = max(_LEFT, 24 + _SIZE * 0.6 * len(f"batch {len(plan.splits)}"))
    scale = (WIDTH - left - _RIGHT) / plan.batch_size
    boxes: list[Box] = []
    texts: list[Text] = []
    lanes = _lanes(plan)
    if not plan.rows:
        texts.append(
            Text(left, _TOP + _LANE / 2 + _SIZE * 0.35, say(en="no rows", zh="没有数据行"), _SIZE, muted=True)
        )
    for at, number in enumerate(lanes):
        y = _TOP + at * _LANE
        line = y + _LANE / 2 + _SIZE * 0.35
        if number is None:
            skipped = len(plan.splits) - len([lane for lane in lanes if lane is not None])
            words = say(en=f"… {skipped} more batches like these …", zh=f"…… 还有 {skipped} 个这样的批次 ……")
            texts.append(Text(left, line, words, _SIZE, muted=True))
            continue
        batch = plan.splits[number]
        texts.append(Text(left - 8, line, say(en=f"batch {number}", zh=f"批次 {number}"), _SIZE, "end"))
        boxes += _pieces(batch, left, y, scale)
        texts += _labels(plan, batch, number, left, line, scale)
        note, short = _note(plan, batch), batch.batch < plan.batch_size
        texts.append(Text(WIDTH - _RIGHT + 8, line, note, sized(note, _RIGHT - 10, _SIZE, short), bold=short))
    count = len(lanes)
    if plan.dropped:
        y = _TOP + count * _LANE
        line = y + _LANE / 2 + _SIZE * 0.35
        boxes.append(Box(left, y + 2, plan.dropped * scale, _LANE - 4, dashed=True))
        words = say(
            en=f"{plan.dropped} row{'s' * (plan.dropped != 1)}, dropped", zh=f"{plan.dropped} 行，舍去"
        )
        texts.append(Text(WIDTH - _RIGHT + 8, line, words, _SIZE, muted=True))
        count += 1
    return Picture(
        WIDTH, 2 * _TOP + max(count, 1) * _LANE, tuple(boxes), tuple(texts), describe_batches(plan)
    )


def describe_batches(plan: Batches) -> str:
    """The batches in one sentence."""
    full = sum(size == plan.batch_size for size in plan.sizes)
    short = plan.splits[-1].batch if plan.splits and plan.splits[-1].batch < plan.batch_size else 0
    text = say(
        en=f"{plan.rows} rows: {full} full batch{'es' * (full != 1)} of {plan.batch_size}",
        zh=f"{plan.rows} 行：{full} 个装满的批次，每个 {plan.batch_size} 行",
    )
    if short:
        text += say(en=f" and a short one of {short}", zh=f"，外加一个只有 {short} 行、不满的批次")
    if plan.dropped:
        text += say(en=f"; the last {plan.dropped} rows are dropped", zh=f"；最后 {plan.dropped} 行舍去")
    if plan.gpus > 1:
        text += say(en=f"; each is split over {plan.gpus} GPUs", zh=f"；每个批次切分给 {plan.gpus} 块 GPU")
    return text + say(en=".", zh="。")


@draws(Batches)
def batches_svg(plan: Batches) -> str:
    """The batches as SVG text, on a panel of its own so that it reads on any background."""
    return to_svg(batches_picture(plan), panel=True)


def draw_batches(plan: Batches | int, batch_size: int | None = None, *, gpus: int = 1, ax=None):
    """Draw one pass over the data; returns the matplotlib Axes.

    plan   a :class:`labkit.plans.split.Batches`, or the number of rows, with ``batch_size`` (and ``gpus``) beside it.
    ax     the Axes to draw into; a new figure if not given.
    """
    if not isinstance(plan, Batches):
        plan = batches(plan, batch_size, gpus=gpus)
    from .figure import paint  # matplotlib is only wanted here

    return paint(lambda: batches_picture(plan), ax)


def _lanes(plan: Batches) -> list[int | None]:
    """The numbers of the batches that are drawn; None where others are left out."""
    count = len(plan.splits)
    if count <= _MOST:
        return list(range(count))
    return [*range(_MOST - 3), None, count - 2, count - 1]


def _pieces(batch: Split, left: float, y: float, scale: float) -> list[Box]:
    return [
        Box(left + p.start * scale, y + 2, p.rows * scale, _LANE - 4, gpu=p.gpu, label=str(p))
        for p in batch.pieces if p.rows
    ]  # fmt: skip


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


def _note(plan: Batches, batch: Split) -> str:
    words = say(en=f"{batch.batch} row{'s' * (batch.batch != 1)}", zh=f"{batch.batch} 行")
    if batch.batch < plan.batch_size:
        words += say(en=", short", zh="，不满")
    if batch.idle:
        words += say(en=f"; {len(batch.idle)} idle", zh=f"；{len(batch.idle)} 块空闲")
    return words
