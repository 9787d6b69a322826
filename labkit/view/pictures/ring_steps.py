"""The picture of a ring all-reduce: a lane for each rank, a cell for each chunk, a stripe for each gradient in it."""

from __future__ import annotations

from ...base.language import say
from ...base.numbers import plural
from ...plans.ring import Ring
from ..layout import Lanes, shortened, sized, text_width, together
from ..picture import WIDTH, Box, Picture, Sketch, Text

_LEFT, _RIGHT, _TOP, _LANE, _GAP = 76, 12, 44, 30, 22
_NOTES = 210  # right of one step: who sends what
_FINEST = 6.0  # below this many pixels a cell has no outline of its own
_MOST = 8  # ranks drawn one by one; of more, the first seven and the last
_MOST_CELLS = 64  # of more chunks, neighbours are drawn as one


def all_reduce_picture(ring: Ring) -> Picture:
    """One step, or the beginning, the middle and the end side by side."""
    shown = shortened(ring.ranks, most=_MOST, head=_MOST - 1, tail=1)
    lane = Lanes(_TOP, _LEFT, _RIGHT if ring.step is None else _NOTES, _LANE, 13, pad=3)
    sketch = Sketch()
    for at, rank in enumerate(shown):
        if isinstance(rank, range):
            words = say(en=f"… {plural(len(rank), 'more rank')} …", zh=f"…… 还有 {len(rank)} 个 rank ……")
            if (column := len(together(ring.ranks, _MOST_CELLS)[0])) > 1:
                words += say(en=f" (a column: {column} chunks)", zh=f"（一列：{column} 个分块）")
            sketch.add(lane.aside(at, words))
        else:
            sketch.add(lane.name(at, f"rank {rank}"))
    if ring.step is None:
        width = (lane.across - _GAP * 2) / 3
        for panel, step in enumerate(sorted({0, ring.ranks - 1, ring.steps})):
            sketch.add(*_panel(ring, step, shown, lane, _LEFT + panel * (width + _GAP), width))
    else:
        sketch.add(*_panel(ring, ring.step, shown, lane, _LEFT, lane.across), *_received(ring, shown, lane))
    return sketch.picture(lane.y(len(shown)) + 10, _description(ring))


def _description(ring: Ring) -> str:
    n = ring.ranks
    if n == 1:
        return say(en="One rank: there is nothing to sum.", zh="只有一个 rank：不需要相加。")
    text = say(
        en=f"Ring all-reduce over {n} ranks: after {plural(n - 1, 'step')} each rank has one chunk of the sum, "
        f"after {ring.steps} all of it; each rank sends {ring.chunks_sent}/{n} of its gradient.",
        zh=f"{n} 个 rank 的环形全归约：{n - 1} 步之后，每个 rank 有一个分块已经加完；{ring.steps} 步之后，"
        f"全部加完；每个 rank 发出自己梯度的 {ring.chunks_sent}/{n}。",
    )
    return text if ring.step is None else _title(ring, ring.step) + say(en=": ", zh="：") + text


def _title(ring: Ring, step: int) -> str:
    if step == 0:
        return say(en="at first", zh="一开始")
    return say(en=f"after step {step} of {ring.steps}", zh=f"第 {step} 步之后（共 {ring.steps} 步）")


def _panel(
    ring: Ring, step: int, shown: list[int | range], lane: Lanes, left: float, width: float
) -> list[Box | Text]:
    """The chunks that each rank holds; a cell is filled as far as its sum is finished, a stripe for each gradient."""
    found: list[Box | Text] = [Text(left + width / 2, _TOP - 26, _title(ring, step), 13, "middle", bold=True)]
    groups = together(ring.ranks, _MOST_CELLS)
    across = width / ring.ranks
    drawn = ring.sends(step) if step and ring.step is not None else ()
    new = {(send.target, send.chunk) for send in drawn}
    for at, rank in enumerate(shown):
        if isinstance(rank, range):
            continue
        for chunks in groups:
            cell = lane.bar(at, left + chunks[0] * across, len(chunks) * across)
            if len(groups) < ring.ranks or ring.ranks > _MOST:
                found.append(_share(ring, step, rank, chunks, cell))
            else:
                found += _stripes(ring, step, rank, chunks[0], cell)
            received = " received" * ((rank, chunks[0]) in new)
            if cell.width > _FINEST and len(groups) == ring.ranks:
                found.append(
                    lane.bar(at, cell.x, cell.width, label=f"rank {rank} chunk {chunks[0]}{received}")
                )
    # The chunks' numbers over them: all where there is room, else the first and the last.
    for chunk in range(ring.ranks) if across > 14 else sorted({0, ring.ranks - 1}):
        x = min(left + (chunk + 0.5) * across, left + width - text_width(str(chunk), 11) / 2 + 12)
        found.append(Text(x, _TOP - 6, str(chunk), 11, "middle", muted=True))
    return found


def _stripes(ring: Ring, step: int, rank: int, chunk: int, cell: Box) -> list[Box]:
    """From the bottom up: a stripe in each summed rank's colour."""
    high = cell.height / ring.ranks
    return [
        Box(
            cell.x, cell.y + cell.height - high * (part + 1), cell.width, high, part,
            f"rank {rank} chunk {chunk} from {part}",
        )
        for part in sorted(number % ring.ranks for number in ring.summed(step, rank, chunk))
    ]  # fmt: skip


def _share(ring: Ring, step: int, rank: int, chunks: range, cell: Box) -> Box:
    """Where there are many ranks: one stripe in the rank's own colour, as high as the sum is finished on average."""
    parts = sum(len(ring.summed(step, rank, chunk)) for chunk in chunks) / len(chunks)
    high = cell.height / ring.ranks * parts
    words = f"chunk {chunks[0]}" if len(chunks) == 1 else f"chunks {chunks[0]} to {chunks[-1]}"
    return Box(cell.x, cell.y + cell.height - high, cell.width, high, rank, words)


def _received(ring: Ring, shown: list[int | range], lane: Lanes) -> list[Text]:
    """Right of one step: which chunk each rank has just received, and from whom."""
    if not ring.step:
        return []
    by_target = {send.target: send for send in ring.sends(ring.step)}
    notes = []
    for at, rank in enumerate(shown):
        if isinstance(rank, int):
            send = by_target[rank]
            words = say(
                en=f"{'adds' if send.adds else 'takes'} chunk {send.chunk} of rank {send.source}",
                zh=f"{'加上' if send.adds else '换成'} rank {send.source} 的分块 {send.chunk}",
            )
            size = sized(words, _NOTES - 12, lane.size)
            notes.append(Text(WIDTH - _NOTES + 10, lane.line(at), words, size))
    return notes
