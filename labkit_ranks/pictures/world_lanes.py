"""Draw a world: a lane for each node, a cell for each GPU, with the ranks that use the GPU."""

from __future__ import annotations

from labkit.base.language import say
from labkit.base.numbers import one_of
from labkit.view.layout import BASELINE, Lanes, fit_size, text_width
from labkit.view.picture import Box, Label, Picture, Sketch

from ..calls.faults.report import format_numbers, format_ranks
from .captions import caption

_LEFT, _TOP, _HIGH, _GAP = 76, 34, 78, 6
_SIDE = 7  # the least width of the hatching beside the words
# The variable from which a script takes the GPU's number; "" for no choice.
CHOSEN_BY = ("LOCAL_RANK", "RANK", "")


def world_picture(nodes: int, each: int, chosen_by: str) -> Picture:
    """Draw ``nodes`` nodes with ``each`` GPUs, a rank for each; hatch the ranks whose GPU does not exist."""
    one_of("chosen_by", chosen_by, CHOSEN_BY)
    sketch, size = Sketch(), nodes * each
    lane = Lanes(_TOP, _LEFT, 12, _HIGH, 13)
    width = lane.width / each
    facts = {"nodes": nodes, "each": each, "size": size}
    sketch.add(Label(14, 20, caption("world", "title", **facts), 13, bold=True))
    for node in range(nodes):
        sketch.add(lane.name(node, say(en=f"node {node}", zh=f"节点 {node}")))
        for gpu in range(each):
            rank, first, own = node * each + gpu, node * each, f"cuda:{gpu}"
            lost = chosen_by == "RANK" and rank >= each
            idle = chosen_by == "" and gpu > 0
            lines = [own, f"RANK {rank}", f"LOCAL_RANK {gpu}"]
            if lost:
                lines = [own, f"RANK {rank}", f"cuda:{rank} ?"]
            elif chosen_by == "":
                lines = [own] if idle else [own, f"RANK {format_numbers(range(first, first + each), '–')}"]
            x, y = _LEFT + gpu * width, lane.y(node) + _GAP / 2
            colour = None if lost or idle else gpu
            wide, high, name = width - _GAP, _HIGH - _GAP, f"node {node} {own}"
            sketch.add(Box(x, y, wide, high, colour, name, dashed=idle))
            if lost:  # left and right of the words, which could not be read on strokes
                side = max((wide - max(text_width(words, 13) for words in lines)) / 2, _SIDE)
                sketch.add(*(Box(at, y, side, high, label=name, hatched=True) for at in (x, x + wide - side)))
            for at, words in enumerate(lines):
                line = y + high * (at + 1) / (len(lines) + 1) + 13 * BASELINE
                fits = fit_size(words, wide - 6 - 2 * _SIDE * lost, 13 if at == 1 else 11, at == 1)
                sketch.add(Label(x + wide / 2, line, words, fits, "middle", gpu=colour, bold=at == 1))
    described = [caption("world", **facts)]
    if chosen_by == "RANK" and nodes > 1:
        described.append(caption("world", "absent", ranks=format_ranks(range(each, size), "–")))
    elif chosen_by == "" and each > 1:
        described.append(caption("world", "shared"))
    return sketch.picture(lane.y(nodes) + 8, say(en=" ", zh="").join(described))
