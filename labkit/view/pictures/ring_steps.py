"""The picture of an all-reduce: a lane for each rank, a cell for each chunk, a stripe for each gradient in it.

A single step also has a circle of ranks with the messages and, below, a clock that compares ring and star.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby
from math import cos, hypot, pi, sin

from ...base.language import say
from ...base.numbers import plural
from ...plans.ring import AllReduce, Ring, Send, Star
from ..captions import caption
from ..layout import BASELINE, Lanes, choose_shown, fit_size, group_neighbours, text_width
from ..palette import CPU
from ..picture import WIDTH, Box, Label, Line, Picture, Sketch

_LEFT, _RIGHT, _TOP, _LANE, _GAP = 76, 12, 44, 30, 22
# For a single step: middle and radius of the circle on the right, right edge of the lanes (a narrow page shows them
# without scrolling), width of the notes beside them.
_CIRCLE, _RADIUS, _LANES_END, _NOTES = 594, 84, 290, 160
_NODE = (30, 22)
_MOST_NODES = 64
_LEAST = 2 * _RADIUS + 24  # height of the circle with its ranks
_FINEST = 6.0  # the fewest pixels for a cell's outline
_MOST = 8  # the most ranks drawn; of more, the first seven and the last
_MOST_CELLS = 64  # the most cells; more chunks are drawn in groups


def all_reduce_picture(plan: AllReduce) -> Picture:
    """Draw one step, or the beginning, the middle and the end side by side."""
    shown = choose_shown(plan.ranks, most=_MOST, head=_MOST - 1, tail=1)
    one = plan.step is not None
    lane = Lanes(_TOP, _LEFT, WIDTH - _LANES_END if one else _RIGHT, _LANE, 13, pad=3)
    sketch = Sketch()
    for at, rank in enumerate(shown):
        if isinstance(rank, range):
            words = say(en=f"… {plural(len(rank), 'more rank')} …", zh=f"…… 还有 {len(rank)} 个 rank ……")
            if (column := len(group_neighbours(plan.ranks, _MOST_CELLS)[0])) > 1:
                words += say(en=f" (a column: {column} chunks)", zh=f"（一列：{column} 个分块）")
            sketch.add(lane.placeholder(at, words))
        else:
            sketch.add(lane.name(at, f"rank {rank}"))
    height = lane.y(len(shown)) + 10
    if plan.step is None:
        width = (lane.width - _GAP * 2) / 3
        for panel, step in enumerate(sorted({0, plan.ranks - 1, plan.steps})):
            sketch.add(*_panel(plan, step, shown, lane, _LEFT + panel * (width + _GAP), width))
    else:
        height = max(height, _TOP + _LEAST)
        sketch.add(
            *_panel(plan, plan.step, shown, lane, _LEFT, lane.width), *_receive_notes(plan, shown, lane)
        )
        sketch.add(*_circle(plan, plan.step))
        clock = _clock(plan, plan.step, height + 4)
        sketch.add(*clock)
        height += 66 if clock else 0
    return sketch.picture(height, _description(plan))


def _description(plan: AllReduce) -> str:
    n = plan.ranks
    if n == 1:
        return say(en="One rank: there is nothing to sum.", zh="只有一个 rank：不需要相加。")
    text = caption(
        "ring" if isinstance(plan, Ring) else "star", plan=plan, half=n - 1, sent=float(plan.carried)
    )
    if plan.step is None:
        return text
    title = _title(plan, plan.step)
    return title[0].upper() + title[1:] + say(en=". ", zh="。") + text


def _circle(plan: AllReduce, step: int) -> list[Box | Line | Label]:
    """Draw the ranks (of a star around rank 0) and an arrow for each sender in ``step``."""
    middle, star = _TOP + 4 + _RADIUS, isinstance(plan, Star)
    # Of very many ranks, draw the first of each group.
    around = [group[0] + star for group in group_neighbours(plan.ranks - star, _MOST_NODES)]
    places = {0: (float(_CIRCLE), float(middle))}
    for at, rank in enumerate(around):
        angle = 2 * pi * at / len(around)
        places[rank] = _CIRCLE + _RADIUS * sin(angle), middle - _RADIUS * cos(angle)
    found: list[Box | Line | Label] = []
    labelled = plan.ranks <= _MOST
    size = _NODE if labelled else (9, 9)
    sends = plan.sends(step) if step else ()
    beside = [0] * len(around) if star else [*around[1:], *around[:1]]
    links = list(zip(around, beside, strict=True)) if plan.ranks > 1 else []
    for one, other in links:
        if step or star:
            found.append(Line(*places[one], *places[other], muted=True))
        else:  # before the first message, show which way the ring will send
            found.append(replace(_arrow_between(places[one], places[other], size), strong=False, muted=True))
    both_ways = {*links, *((other, one) for one, other in links)}
    for source, target in sorted({(send.source, send.target) for send in sends} & both_ways):
        line = _arrow_between(places[source], places[target], size)
        found.append(line)
        chunks = [send.chunk for send in sends if send.source == source]
        if labelled:
            words = str(chunks[0]) if len(chunks) == 1 else say(en="all", zh="全部")
            found.append(_label_line(line, words))
    for rank, (x, y) in places.items():
        left, top, name = x - size[0] / 2, y - size[1] / 2, f"rank {rank}"
        found.append(Box(left, top, *size, rank, f"node {rank}", tip=name, round=not labelled))
        if labelled:
            found.append(Label(x, y + 13 * BASELINE, str(rank), 13, "middle", gpu=rank, bold=True))
    if sends:
        found.append(Label(_CIRCLE, _TOP - 26, _sends_text(plan, step), 12, "middle"))
    return found


def _sends_text(plan: AllReduce, step: int) -> str:
    """Return the line above the circle: what ranks send in ``step``."""
    adds = step < plan.ranks
    rank = step if adds else step - plan.ranks + 1
    way = "ring" if isinstance(plan, Ring) else "star"
    return caption(way, "adds" if adds else "replaces", rank=rank)


def _arrow_between(one: tuple[float, float], other: tuple[float, float], size: tuple[float, float]) -> Line:
    """Draw an arrow between boxes of ``size``, given their middles."""
    dx, dy = other[0] - one[0], other[1] - one[1]
    length = hypot(dx, dy) or 1.0
    # Distance from a box's middle to its edge along the line.
    sideways = size[0] / 2 / abs(dx / length) if dx else length
    upwards = size[1] / 2 / abs(dy / length) if dy else length
    out = min(min(sideways, upwards) + 2, length * 0.3)
    dx, dy = dx / length * out, dy / length * out
    return Line(one[0] + dx, one[1] + dy, other[0] - dx, other[1] - dy, arrow=True, strong=True)


def _label_line(line: Line, words: str) -> Label:
    """Write ``words`` beside the middle of a line, outside the circle."""
    x, y = (line.x1 + line.x2) / 2, (line.y1 + line.y2) / 2
    dx, dy = x - _CIRCLE, y - (_TOP + 4 + _RADIUS)
    across = line.y2 - line.y1, line.x1 - line.x2  # a quarter turn
    length = hypot(*across) or 1.0
    turn = 1 if across[0] * dx + across[1] * dy >= 0 else -1
    far = turn * (10 + text_width(words, 11) / 4) / length
    return Label(x + across[0] * far, y + across[1] * far + 4, words, 11, "middle")


def _clock(plan: AllReduce, step: int, top: float) -> list[Box | Label]:
    """Draw a bar for the ring and one for the star: their time so far; 1 is a whole gradient over one link."""
    if plan.ranks == 1:
        return []
    now, longest = plan.time(step), Star(plan.ranks).time(plan.steps)
    lane = Lanes(top + 18, _LEFT, 120, 20, 12, pad=4)
    half = plan.ranks - 1
    words = say(
        en=f"time, in gradients sent over one link (the star takes in {half}, then sends {half})",
        zh=f"时间，以一份梯度在一条链路上传完为 1（星形先收 {half} 份，再发 {half} 份）",
    )
    found: list[Box | Label] = [Label(_LEFT, top + 12, words, 11, muted=True)]
    names: dict[type[AllReduce], str] = {Ring: say(en="ring", zh="环形"), Star: say(en="star", zh="星形")}
    for at, (kind, name) in enumerate(names.items()):
        other = kind(plan.ranks)
        whole = other.time(plan.steps)
        done = min(now, whole)
        scale = lane.width / longest
        mine = kind is type(plan)
        found.append(lane.name(at, name, muted=not mine))
        found.append(lane.bar(at, _LEFT, float(whole * scale), dashed=True, label=f"{name} whole"))
        if done:
            found.append(lane.bar(at, _LEFT, float(done * scale), CPU, tint=0.3, label=f"{name} done"))
        progress = f"{float(done):.3g} / {float(whole):.3g}" + " ✓" * (done == whole)
        found.append(lane.note(at, progress, bold=mine, muted=not mine))
    return found


def _title(plan: AllReduce, step: int) -> str:
    if step == 0:
        return say(en="at the start", zh="一开始")
    return say(en=f"after step {step} of {plan.steps}", zh=f"第 {step} 步之后（共 {plan.steps} 步）")


def _panel(
    plan: AllReduce, step: int, shown: list[int | range], lane: Lanes, left: float, width: float
) -> list[Box | Label]:
    """Draw the chunks of each rank: a cell is filled as far as its sum is done, with a stripe for each gradient."""
    found: list[Box | Label] = [
        Label(left + width / 2, _TOP - 26, _title(plan, step), 13, "middle", bold=True)
    ]
    groups = group_neighbours(plan.ranks, _MOST_CELLS)
    across = width / plan.ranks
    sends = plan.sends(step) if step and plan.step is not None else ()
    new = {(send.target, send.chunk) for send in sends}
    for at, rank in enumerate(shown):
        if isinstance(rank, range):
            continue
        one_by_one = len(groups) == plan.ranks <= _MOST
        if one_by_one:
            found += _stripes(plan, step, rank, lane.bar(at, left, width))
        for chunks in groups:
            cell = lane.bar(at, left + chunks[0] * across, len(chunks) * across)
            if not one_by_one:
                found.append(_share(plan, step, rank, chunks, cell))
            received = (rank, chunks[0]) in new
            if cell.width > _FINEST and len(groups) == plan.ranks:
                label = f"rank {rank} chunk {chunks[0]}" + (" received" if received else "")
                found.append(replace(cell, label=label, strong=received))
    # The chunks' numbers over them: all where there is room, else the first and the last.
    for chunk in range(plan.ranks) if across > 14 else sorted({0, plan.ranks - 1}):
        x = min(left + (chunk + 0.5) * across, left + width - text_width(str(chunk), 11) / 2 + 12)
        found.append(Label(x, _TOP - 6, str(chunk), 11, "middle", muted=True))
    return found


def _stripes(plan: AllReduce, step: int, rank: int, row: Box) -> list[Box]:
    """Draw a rank's chunks: from the bottom up a stripe for each summed rank, joined over neighbouring chunks."""
    high, across = row.height / plan.ranks, row.width / plan.ranks
    held = [
        {number % plan.ranks for number in plan.summed_ranks(step, rank, chunk)}
        for chunk in range(plan.ranks)
    ]
    found = []
    for part in range(plan.ranks):
        y, start = row.y + row.height - high * (part + 1), 0
        for there, run in groupby(part in parts for parts in held):
            stop = start + len(list(run))
            if there:
                label = f"rank {rank} chunks {start} {stop - 1} from {part}"
                found.append(Box(row.x + start * across, y, (stop - start) * across, high, part, label))
            start = stop
    return found


def _share(plan: AllReduce, step: int, rank: int, chunks: range, cell: Box) -> Box:
    """Draw a cell where ranks are many: in the rank's colour, as high as the average share of the sum."""
    parts = sum(len(plan.summed_ranks(step, rank, chunk)) for chunk in chunks) / len(chunks)
    high = cell.height / plan.ranks * parts
    words = f"chunk {chunks[0]}" if len(chunks) == 1 else f"chunks {chunks[0]} to {chunks[-1]}"
    return Box(cell.x, cell.y + cell.height - high, cell.width, high, rank, words)


def _receive_notes(plan: AllReduce, shown: list[int | range], lane: Lanes) -> list[Label]:
    """Write, right of one step, the chunk that each rank has just received, and the sender."""
    if not plan.step:
        return []
    by_target: dict[int, list[Send]] = {}
    for send in plan.sends(plan.step):
        by_target.setdefault(send.target, []).append(send)
    notes = []
    for at, rank in enumerate(shown):
        if isinstance(rank, int) and rank in by_target:
            (send, *more) = by_target[rank]
            one = say(en=f"chunk {send.chunk}", zh=f"分块 {send.chunk}")
            chunks = say(en="all", zh="全部") if more else one
            words = caption("received", "adds" if send.adds else "replaces", chunks=chunks, rank=send.source)
            size = fit_size(words, _NOTES - 12, lane.size)
            notes.append(Label(_LANES_END + 10, lane.line(at), words, size))
    return notes
