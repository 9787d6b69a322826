"""The picture of a ring all-reduce: a lane for each rank, a cell for each chunk, a stripe for each gradient in it."""

from __future__ import annotations

from ..base.display import draws
from ..base.language import say
from ..plans.ring import Ring, ring_all_reduce
from .picture import Box, Picture, Text
from .svg import to_svg

WIDTH = 720
_LEFT, _RIGHT, _TOP, _LANE, _GAP = 76, 12, 44, 30, 22
_NOTES = 210  # right of one step: who sends what
_FINEST = 6.0  # below this many pixels a cell has no outline of its own
_MOST = 8  # ranks drawn one by one; of more, the first seven and the last


def all_reduce_picture(ring: Ring) -> Picture:
    """The ring as a :class:`Picture`: one step, or the beginning, the middle and the end side by side."""
    lanes = _lanes(ring.ranks)
    boxes, texts = [], []
    for at, rank in enumerate(lanes):
        if rank is None:
            more = ring.ranks - _MOST
            words = say(en=f"… {more} more rank{'s' * (more != 1)} …", zh=f"…… 还有 {more} 个 rank ……")
            texts.append(Text(_LEFT, _line(at), words, 13, muted=True))
        else:
            texts.append(Text(_LEFT - 8, _line(at), f"rank {rank}", 13, "end"))
    if ring.step is None:
        steps = sorted({0, ring.ranks - 1, ring.steps})
        width = (WIDTH - _LEFT - _RIGHT - _GAP * 2) / 3
        for panel, step in enumerate(steps):
            left = _LEFT + panel * (width + _GAP)
            texts.append(Text(left + width / 2, _TOP - 26, _title(ring, step), 13, "middle", bold=True))
            boxes += _panel(ring, step, lanes, left, width)
            texts += _numbers(ring, left, width)
    else:
        width = WIDTH - _LEFT - _NOTES
        texts.append(Text(_LEFT + width / 2, _TOP - 26, _title(ring, ring.step), 13, "middle", bold=True))
        boxes += _panel(ring, ring.step, lanes, _LEFT, width)
        texts += _numbers(ring, _LEFT, width)
        texts += _received(ring, lanes)
    return Picture(
        WIDTH, _TOP + len(lanes) * _LANE + 10, tuple(boxes), tuple(texts), describe_all_reduce(ring)
    )


def describe_all_reduce(ring: Ring) -> str:
    """The all-reduce, or its step, in one or two sentences."""
    n = ring.ranks
    if n == 1:
        return say(en="One rank: there is nothing to sum.", zh="只有一个 rank：不需要相加。")
    text = say(
        en=f"Ring all-reduce over {n} ranks: after {n - 1} step{'s' * (n > 2)} each rank has one chunk of the sum, "
        f"after {ring.steps} all of it; each rank sends {ring.chunks_sent}/{n} of its gradient.",
        zh=f"{n} 个 rank 的环形全归约：{n - 1} 步之后，每个 rank 有一个分块已经加完；{ring.steps} 步之后，"
        f"全部加完；每个 rank 发出自己梯度的 {ring.chunks_sent}/{n}。",
    )
    if ring.step is not None:
        text = _title(ring, ring.step) + say(en=": ", zh="：") + text
    return text


@draws(Ring)
def all_reduce_svg(ring: Ring) -> str:
    """The ring as SVG text, on a panel of its own so that it reads on any background."""
    return to_svg(all_reduce_picture(ring), panel=True)


def draw_all_reduce(ranks: Ring | int, step: int | None = None, *, ax=None):
    """Draw how ranks sum their gradients around a ring; returns the matplotlib Axes.

    ranks   a :class:`labkit.plans.ring.Ring`, or the number of ranks, with ``step`` beside it.
    step    0 to 2 × (ranks − 1); the beginning, the middle and the end if not given.
    ax      the Axes to draw into; a new figure if not given.
    """
    ring = ranks if isinstance(ranks, Ring) else ring_all_reduce(ranks, step)
    from .figure import paint  # matplotlib is only wanted here

    return paint(lambda: all_reduce_picture(ring), ax)


def _lanes(ranks: int) -> list[int | None]:
    """The ranks that are drawn; None where others are left out."""
    return list(range(ranks)) if ranks <= _MOST else [*range(_MOST - 1), None, ranks - 1]


def _line(at: int) -> float:
    return _TOP + at * _LANE + _LANE / 2 + 13 * 0.35


def _title(ring: Ring, step: int) -> str:
    if step == 0:
        return say(en="at first", zh="一开始")
    return say(en=f"after step {step} of {ring.steps}", zh=f"第 {step} 步之后（共 {ring.steps} 步）")


def _panel(ring: Ring, step: int, lanes: list[int | None], left: float, width: float) -> list[Box]:
    """The chunks that each rank holds; a cell is filled as far as its sum is finished, a stripe for each gradient."""
    held, cell, boxes = ring.held(step), width / ring.ranks, []
    drawn = ring.sends(step) if step and ring.step is not None else ()
    new = {(send.target, send.chunk) for send in drawn}
    for at, rank in enumerate(lanes):
        if rank is None:
            continue
        top = _TOP + at * _LANE + 3
        for chunk, parts in enumerate(held[rank]):
            boxes += _stripes(ring, rank, chunk, parts, left + chunk * cell, top, cell)
            label = f"rank {rank} chunk {chunk}" + " received" * ((rank, chunk) in new)
            if cell > _FINEST:
                boxes.append(Box(left + chunk * cell, top, cell, _LANE - 6, label=label))
    return boxes


def _stripes(ring: Ring, rank, chunk, parts, x, top, cell) -> list[Box]:
    """From the bottom up: a stripe in each summed rank's colour, or one for all of them where there are many."""
    high = (_LANE - 6) / ring.ranks
    bottom = top + _LANE - 6
    if ring.ranks > _MOST:
        return [Box(x, bottom - high * len(parts), cell, high * len(parts), gpu=rank, label=f"chunk {chunk}")]
    return [
        Box(
            x,
            bottom - high * (part + 1),
            cell,
            high,
            gpu=part,
            label=f"rank {rank} chunk {chunk} from {part}",
        )
        for part in sorted(parts)
    ]


def _numbers(ring: Ring, left: float, width: float) -> list[Text]:
    """The chunks' numbers over them: all where there is room, else the first and the last."""
    cell = width / ring.ranks
    shown = range(ring.ranks) if cell > 14 else sorted({0, ring.ranks - 1})
    return [
        Text(left + (chunk + 0.5) * cell, _TOP - 6, str(chunk), 11, "middle", muted=True) for chunk in shown
    ]


def _received(ring: Ring, lanes: list[int | None]) -> list[Text]:
    """Right of one step: which chunk each rank has just received, and from whom."""
    if not ring.step:
        return []
    by_target = {send.target: send for send in ring.sends(ring.step)}
    notes = []
    for at, rank in enumerate(lanes):
        if rank is not None:
            send = by_target[rank]
            words = say(
                en=f"{'adds' if send.adds else 'takes'} chunk {send.chunk} of rank {send.source}",
                zh=f"{'加上' if send.adds else '换成'} rank {send.source} 的分块 {send.chunk}",
            )
            notes.append(Text(WIDTH - _NOTES + 10, _line(at), words, 13))
    return notes
