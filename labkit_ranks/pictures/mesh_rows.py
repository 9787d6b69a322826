"""Draw a mesh: a row for each computer, a box for each rank in the colour of its group."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from math import prod

from labkit.base.language import say
from labkit.view.layout import BASELINE, Lanes, fit_size
from labkit.view.picture import Box, Label, Line, Picture, Sketch

from ..plans.mesh import Mesh
from .captions import caption

_TALL = 8  # up to so many computers have high rows, with coordinates


def mesh_picture(mesh: Mesh, name: str, rank: int, sent: float = 0.0) -> Picture:
    """Draw the groups along dimension ``name``; the group of ``rank`` in full colour, the others pale.

    sent   bytes that each rank of the group sends to the next: links show them, dashed between computers.
    """
    ranks, sketch, boxes = prod(mesh.sizes), Sketch(), dict[int, Box]()
    groups, rows = mesh.groups(name), -(-ranks // mesh.node)
    (mine,) = (group for group in groups if rank in group)
    lane = Lanes(52, 76, 12, 58 if rows <= _TALL else 34, 12, pad=10)
    each = lane.width / min(mesh.node, ranks)
    description = caption("mesh", rank=rank, name=name, mine=[*mine], stride=mesh.stride(name),
                          groups=len(groups), crossing=mesh.crossing(name))  # fmt: skip
    if sent and len(mine) > 1:
        often = say(en="step", zh="步") if name == "dp" else say(en="micro-batch", zh="个微批次")
        links = say(en="links within a node", zh="节点内的链路")
        if mine[0] // mesh.node != mine[-1] // mesh.node:
            links = say(en="network between nodes", zh="节点之间的网络")
        said = caption("mesh", "sent", often=often, gigabytes=f"{sent / 1e9:.2g}", name=name, links=links)
        description += say(en=f" {said}", zh=said)
    names = ", ".join(f"{dim} {size}" for dim, size in zip(mesh.names, mesh.sizes, strict=True))
    sketch.add(Label(12, 20, names, 13, bold=True))
    sketch.add(Label(12, 40, f"rank ({', '.join(mesh.names)})", 11, muted=True))
    for number, group in enumerate(groups):
        for member in group:
            row, column = divmod(member, mesh.node)
            tint, coordinate = 0.6 * (group != mine), str(mesh.coordinate(member))
            place = row, 76 + column * each, each - 4
            box = lane.bar(*place, number, tint=tint, label=f"rank {member}", tip=coordinate)
            boxes[member] = box
            sketch.add(replace(box, strong=member == rank))
            lines = [(str(member), 14.0), (coordinate, 10.5)] if rows <= _TALL else [(str(member), 11.0)]
            for line, (words, size) in enumerate(lines, 1):
                y = box.y + box.height * line / (len(lines) + 1) + size * BASELINE
                size = fit_size(words, box.width - 2, size)
                sketch.add(Label(box.x + box.width / 2, y, words, size, "middle", gpu=number, tint=tint))
    for row in range(rows):
        sketch.add(lane.name(row, say(en=f"node {row}", zh=f"节点 {row}")))
    if sent:
        words = f"{sent / 1e9:.2g} GB"
        sketch.add(*_links([boxes[member] for member in mine], words if rows <= _TALL else ""))
    return sketch.picture(lane.y(rows) + 14, description)


def _links(members: Sequence[Box], words: str) -> Iterator[Line | Label]:
    """Lines from each member to the next: below the boxes within a computer, dashed from one to another."""
    for number, (one, other) in enumerate(pairwise(members)):
        x1, x2 = (box.x + box.width / 2 for box in (one, other))
        bottom = one.y + one.height
        if one.y == other.y:
            low = bottom + 6
            yield Line(x1, bottom, x1, low, strong=True)
            yield Line(x1, low, x2, low, strong=True)
            yield Line(x2, low, x2, bottom, strong=True)
        else:
            yield Line(x1, bottom, x2, other.y, dashed=True, strong=True, over=True)
        if words and not number and one.y == other.y:
            yield Label((x1 + x2) / 2 + 6, low + 11, words, 10, bold=True)
        elif words and not number:  # beside the line's upper end, on the side that the line leaves
            side = -1 if x2 > x1 else 1
            anchor = "end" if x2 > x1 else "start"
            yield Label(x1 + 6 * side, (bottom + other.y) / 2 + 2, words, 10, anchor, bold=True)
