"""Draw who waited for whom: a matrix of seconds after a run, calls and arrows after a deadlock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from labkit.base.language import say
from labkit.base.numbers import instance, plural
from labkit.base.units import duration, time_unit
from labkit.trace.trace import Trace
from labkit.view.draw import draw
from labkit.view.layout import fit_size, fit_text, group_neighbours, text_width
from labkit.view.picture import WIDTH, Box, Label, Line, Picture, Sketch

from ..calls.faults.report import format_ranks
from ..calls.wait_graph import Wait, WaitForGraph
from .captions import caption

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# The matrix: left and upper edge, and the room at the right.
_LEFT, _TOP, _RIGHT = 96, 78, 96
# With more ranks than this, neighbours share a row and a column.
_MOST_ROWS = 32
# The palest tint of a wait.
_PALEST = 0.85
# The graph: left edge and width of the boxes, and the distance between arrows.
_BOX, _APART = (14, 470), 14.0
_HIGH, _GAP, _SWATCH = 46.0, 12.0, 17.0
# The most boxes; a line of text counts the rest.
_MOST_STANDS = 24


def waited_picture(trace: Trace) -> Picture:
    """Draw each rank's seconds of waiting, by the last rank to come."""
    waited, ranks = trace.waiting_seconds(), trace.ranks
    groups = [[ranks[at] for at in part] for part in group_neighbours(len(ranks), _MOST_ROWS)]
    side = min(64.0, (WIDTH - _LEFT - _RIGHT) / max(len(groups), 1))
    high = min(30.0, side)
    seconds = [
        [sum(waited.get((who, whom), 0.0) for who in row for whom in column) for column in groups]
        for row in groups
    ]
    most = max([cell for row in seconds for cell in row], default=0.0)
    sketch = Sketch()
    sketch.add(
        Label(_LEFT, 24, say(en="Who waited for whom", zh="谁等了谁"), 13, bold=True),
        Label(_LEFT, 42, say(en="row: waits · column: comes last", zh="行：等待者 · 列：最后到达者"), 11, muted=True),
    )  # fmt: skip
    if not groups:
        sketch.add(Label(_LEFT, _TOP, say(en="no ranks recorded", zh="没有记录到 rank"), 13, muted=True))
        return sketch.picture(_TOP + 20, say(en="No ranks were recorded.", zh="没有记录到任何 rank。"))
    bottom, right = _TOP + high * len(groups), _LEFT + side * len(groups)
    size = min(11.5, high - 2)
    for at, group in enumerate(groups):
        y, x, name = _TOP + at * high, _LEFT + at * side, _name(group)
        line = y + high / 2 + size * 0.35
        sketch.add(Label(_LEFT - 8, line, name, fit_size(name, _LEFT - 12, size), "end"))
        short = name.removeprefix("rank ")
        sketch.add(Label(x + side / 2, _TOP - 7, short, fit_size(short, side - 2, 11), "middle"))
        if total := sum(seconds[at]):
            sketch.add(Label(right + 8, line, duration(total, most), size, muted=True))
        if caused := sum(row[at] for row in seconds):
            words = duration(caused, most).partition(" ")[0]
            fine = fit_size(words, side - 2, 11)
            sketch.add(Label(x + side / 2, bottom + 15, words, fine, "middle", muted=True))
        for column, cell in enumerate(seconds[at]):
            sketch.add(*_cell(groups, at, column, cell, most, side, high))
    unit = time_unit(most)[1]
    lost = say(en=f"{unit} lost", zh=f"共等 ({unit})")
    sketch.add(Label(right + 8, _TOP - 7, say(en="in all", zh="合计"), 11, muted=True))
    sketch.add(Label(_LEFT - 8, bottom + 15, lost, 11, "end", muted=True))
    return sketch.picture(bottom + 28, _describe_waits(trace, waited))


def _cell(
    groups: list[list[int]], row: int, column: int, seconds: float, most: float, side: float, high: float
) -> list[Box | Label]:
    """Return a cell: seconds that a rank waited, in the colour of the last rank, stronger for longer waits."""
    x, y = _LEFT + column * side, _TOP + row * high
    label = f"{_name(groups[row])} waits for {_name(groups[column])}"
    box = Box(x + 1, y + 1, side - 2, high - 2, label=label, dashed=row == column)
    if not seconds:
        return [box]
    tint = _PALEST * (1 - seconds / most)
    who, whom, time = _name(groups[row]), _name(groups[column]), duration(seconds)
    tip = say(en=f"{who} waited {time} for {whom}", zh=f"{who} 等 {whom} 等了 {time}")
    found: list[Box | Label] = [replace(box, gpu=groups[column][0], tint=tint, tip=tip, dashed=False)]
    words = duration(seconds, most).partition(" ")[0]
    fine = fit_size(words, side - 6, min(11.0, high - 4))
    if fine >= 7.5:
        line = y + high / 2 + fine * 0.35
        found.append(Label(x + side / 2, line, words, fine, "middle", gpu=groups[column][0], tint=tint))
    return found


def _name(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]}" + f"–{ranks[-1]}" * (len(ranks) > 1)


def _describe_waits(trace: Trace, waited: dict[tuple[int, int], float]) -> str:
    if not waited:
        return caption("waited", "none", ranks=len(trace.ranks))
    caused: dict[int, float] = {}
    for (_, whom), seconds in waited.items():
        caused[whom] = caused.get(whom, 0.0) + seconds
    worst = max(caused, key=lambda rank: caused[rank])
    total = sum(caused.values())
    share, time = caused[worst] / total, duration(total)
    return caption("waited", ranks=len(trace.ranks), time=time, share=share, worst=worst)


@dataclass(frozen=True)
class Stand:
    """Ranks that wait in the same call, or ended in the same way."""

    ranks: tuple[int, ...]
    wait: Wait


def group_stands(graph: WaitForGraph) -> list[Stand]:
    """Group the ranks of ``graph`` that wait in the same place, in order of the first rank."""
    found: dict[tuple[object, ...], list[Wait]] = {}
    for one in graph.ranks:
        key = (one.state, one.call, one.group, one.sequence, one.place, one.waits_for)
        found.setdefault(key, []).append(one)
    return [Stand(tuple(wait.rank for wait in group), group[0]) for group in found.values()]


def wait_for_picture(graph: WaitForGraph) -> Picture:
    """Draw a box for the ranks that wait in the same place, and arrows to the ranks they wait for."""
    found = group_stands(graph)
    visible, rest = found[:_MOST_STANDS], found[_MOST_STANDS:]
    home = {rank: at for at, stand in enumerate(visible) for rank in stand.ranks}
    sketch = Sketch()
    title = say(en="Who waits for whom", zh="谁在等谁")
    sketch.add(Label(_BOX[0], 24, title, 13, bold=True))
    tops = [40 + at * (_HIGH + _GAP) for at in range(len(visible))]
    edges = [
        (at, to)
        for at, stand in enumerate(visible)
        for to in sorted({home[rank] for rank in stand.wait.waits_for if rank in home})
        if to != at
    ]
    sources = sorted({at for at, _ in edges})
    apart = min(_APART, (WIDTH - sum(_BOX) - 24) / max(len(sources), 1))
    for at, (stand, top) in enumerate(zip(visible, tops, strict=True)):
        sketch.add(*_draw_stand(stand, top))
        if at in sources:
            trunk = sum(_BOX) + 16 + sources.index(at) * apart
            arrive = [tops[to] + _port(edges, source, to) for source, to in edges if source == at]
            sketch.add(*_arrows(top + _HIGH * 0.8, arrive, trunk))
    bottom = 40 + len(visible) * (_HIGH + _GAP)
    if rest:
        count = sum(len(stand.ranks) for stand in rest)
        words = say(en=f"… {plural(count, 'more rank')}", zh=f"……还有 {count} 个 rank")
        sketch.add(Label(_BOX[0], bottom + 8, words, 12, muted=True))
        bottom += 20
    return sketch.picture(bottom, _describe_stands(found))


def _port(edges: list[tuple[int, int]], source: int, to: int) -> float:
    """Return how far below the top of box ``to`` the arrow of ``source`` ends, so that few arrows cross.

    Lower boxes have their lines further right: arrows from above end first, then the outermost from below.
    """
    coming = [one for one, other in edges if other == to]
    ordered = sorted(coming, key=lambda one: (one > to, one if one < to else -one))
    return _HIGH * (0.15 + 0.5 * (ordered.index(source) + 0.5) / len(ordered))


def _arrows(leave: float, arrive: list[float], trunk: float) -> list[Line]:
    """Return the lines from a box along ``trunk`` to the boxes of awaited ranks."""
    edge = sum(_BOX)
    lines = [
        Line(edge, leave, trunk, leave),
        Line(trunk, min([leave, *arrive]), trunk, max([leave, *arrive])),
    ]
    return lines + [Line(trunk, y, edge + 1, y, arrow=True) for y in arrive]


def _draw_stand(stand: Stand, top: float) -> list[Box | Label]:
    """Return a box with ranks, their call, and the line in the code."""
    wait, (left, width) = stand.wait, _BOX
    found: list[Box | Label] = [
        Box(left, top, width, _HIGH, label=f"rank {stand.ranks[0]} {wait.state}", dashed=wait.state == "ended",
            strong=wait.state == "failed", tip=", ".join(f"rank {rank}" for rank in stand.ranks)),
    ]  # fmt: skip
    x, shown = left + 10.0, stand.ranks[:7]
    for rank in shown:
        found.append(Box(x, top + 7, _SWATCH, 15, rank, f"rank {rank}"))
        size = fit_size(str(rank), _SWATCH - 2, 10.5)
        found.append(Label(x + _SWATCH / 2, top + 18, str(rank), size, "middle", gpu=rank))
        x += _SWATCH + 3
    name = "…  " * (len(stand.ranks) > len(shown)) + format_ranks(stand.ranks)
    room = left + width - x - 12
    found.append(Label(x + 5, top + 19, fit_text(name, room, 12), 12, bold=True))
    used = text_width(name, 12) * 1.08 + 14
    if for_whom := _waited_for(stand):
        words = fit_text(for_whom, room - used, 11.5)
        found.append(Label(left + width - 10, top + 19, words, 11.5, "end"))
    doing = _doing(wait)
    return [*found, Label(left + 10, top + 38, doing, fit_size(doing, width - 20, 11.5), muted=True)]


def _waited_for(stand: Stand) -> str:
    if stand.wait.state != "waits":
        return ""
    verb, whom = "wait" if len(stand.ranks) > 1 else "waits", stand.wait.waits_for
    if not whom:
        return say(en=verb, zh="在等待")
    return say(en=f"{verb} for ", zh="在等 ") + format_ranks(whom)


def _doing(wait: Wait) -> str:
    """Describe the call in which a rank waits, and the line in the code."""
    at = f" · {wait.place}" if wait.place else ""
    if wait.state == "ended":
        return say(en="has come to its end", zh="已经运行结束") + at
    if wait.state == "failed":
        return say(en=f"failed: {wait.call}", zh=f"出错：{wait.call}") + at
    of = "" if wait.sequence is None else say(en=f", call {wait.sequence}", zh=f"，第 {wait.sequence} 次调用")
    group = say(en=f" of group {wait.group}", zh=f"，组 {wait.group}") if wait.group else ""
    return f"{wait.call}{of}{group}{at}"


def _describe_stands(found: Sequence[Stand]) -> str:
    """Describe the first stands in a sentence each."""
    parts = []
    for stand in found[:8]:
        who, whom = format_ranks(stand.ranks), _waited_for(stand)
        said = _doing(stand.wait) + (say(en=f", {whom}", zh=f"，{whom}") if whom else "")
        parts.append(say(en=f"{who}: {said}", zh=f"{who}：{said}"))
    if len(found) > 8:
        parts.append("…")
    return say(en="; ", zh="；").join(parts)[:900] + say(en=".", zh="。")


def draw_waits(data: Trace | WaitForGraph, *, ax: Axes | None = None) -> Axes:
    """Draw which rank waited for which; return the matplotlib Axes.

    data   a trace of ranks: draw the seconds that each rank waited, by the rank that came last. Or the
           :class:`labkit.WaitForGraph` of a deadlock: draw where each rank waits, and for whom.
    ax     the Axes to draw into; a new figure by default.

    Raises TypeError for other data.
    """
    if isinstance(data, WaitForGraph):
        graph = data
        return draw(lambda: wait_for_picture(graph), ax)
    trace = instance("data", data, Trace, "labkit.record()")
    return draw(lambda: waited_picture(trace), ax)
