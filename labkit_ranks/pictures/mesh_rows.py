"""The picture of a mesh: a row for each computer, a box for each rank, in the colour of its group."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from labkit.base.language import say
from labkit.view.layout import BASELINE, Lanes, fit_size
from labkit.view.picture import Label, Picture, Sketch

from ..plans.mesh import Mesh
from .captions import caption

_TALL = 8  # up to so many computers have high rows, with coordinates


def mesh_picture(mesh: Mesh, name: str, rank: int) -> Picture:
    """The groups along dimension ``name``; the one of ``rank`` is pointed out, and the others are pale."""
    ranks, sketch = prod(mesh.sizes), Sketch()
    groups, rows = mesh.groups(name), -(-ranks // mesh.node)
    (mine,) = (group for group in groups if rank in group)
    lane = Lanes(52, 76, 12, 46 if rows <= _TALL else 22, 12, pad=4)
    each = lane.width / min(mesh.node, ranks)
    description = caption("mesh", rank=rank, name=name, mine=[*mine], stride=mesh.stride(name),
                          groups=len(groups), crossing=mesh.crossing(name))  # fmt: skip
    names = ", ".join(f"{dim} {size}" for dim, size in zip(mesh.names, mesh.sizes, strict=True))
    sketch.add(Label(12, 20, names, 13, bold=True))
    sketch.add(Label(12, 40, f"rank ({', '.join(mesh.names)})", 11, muted=True))
    for number, group in enumerate(groups):
        for member in group:
            row, column = divmod(member, mesh.node)
            tint, told = 0.6 * (group != mine), str(mesh.coordinate(member))
            place = row, 76 + column * each, each - 4
            box = lane.bar(*place, number, tint=tint, label=f"rank {member}", tip=told)
            sketch.add(replace(box, strong=member == rank))
            lines = [(str(member), 14.0), (told, 10.5)] if rows <= _TALL else [(str(member), 11.0)]
            for line, (words, size) in enumerate(lines, 1):
                y = box.y + box.height * line / (len(lines) + 1) + size * BASELINE
                size = fit_size(words, box.width - 2, size)
                sketch.add(Label(box.x + box.width / 2, y, words, size, "middle", gpu=number, tint=tint))
    for row in range(rows):
        sketch.add(lane.name(row, say(en=f"node {row}", zh=f"节点 {row}")))
    return sketch.picture(lane.y(rows) + 6, description)
