"""The picture of a machine: a lane for each GPU, as long as its memory, filled as far as it is in use."""

from __future__ import annotations

from ..base.display import draws
from ..base.language import say
from ..base.units import bytes_text
from ..plans.footprint import Occupancy
from .picture import Box, Picture, Text, lane_size
from .svg import to_svg

WIDTH = 720
_LEFT, _RIGHT, _TOP = 76, 172, 34
# In use, but too little to see at this scale: it is shown all the same.
_LEAST = 2.0


def occupancy_picture(machine: Occupancy) -> Picture:
    """The GPUs of a machine, as a :class:`Picture`; a byte is equally wide on all of them."""
    lane, size = lane_size(len(machine.used))
    scale = (WIDTH - _LEFT - _RIGHT) / max(machine.capacities, default=1)
    boxes, texts = [], [Text(14, 22, title(machine), 13, bold=True)]
    for gpu, (used, capacity) in enumerate(zip(machine.used, machine.capacities, strict=True)):
        y = _TOP + gpu * lane
        line = y + lane / 2 + size * 0.35
        tip = f"cuda:{gpu} · {bytes_text(used)} / {bytes_text(capacity)}"
        texts.append(Text(_LEFT - 8, line, f"cuda:{gpu}", size, "end"))
        boxes.append(Box(_LEFT, y + 2, capacity * scale, lane - 4, label=f"cuda:{gpu} memory", tip=tip))
        if used:
            width = max(used * scale, _LEAST)
            boxes.append(Box(_LEFT, y + 2, width, lane - 4, gpu=gpu, label=f"cuda:{gpu} used", tip=tip))
        note = say(
            en=f"{bytes_text(used)} of {bytes_text(capacity)}",
            zh=f"{bytes_text(used)} / {bytes_text(capacity)}",
        )
        texts.append(Text(WIDTH - _RIGHT + 8, line, note, size, muted=not used))
    return Picture(
        WIDTH, _TOP + len(machine.used) * lane + 10, tuple(boxes), tuple(texts), describe_occupancy(machine)
    )


def title(machine: Occupancy) -> str:
    """``4 simulated GPUs``."""
    count = len(machine.used)
    if machine.simulated:
        return say(en=f"{count} simulated GPU{'s' * (count != 1)}", zh=f"{count} 块模拟 GPU")
    return say(en=f"{count} real GPU{'s' * (count != 1)}", zh=f"{count} 块真 GPU")


def describe_occupancy(machine: Occupancy) -> str:
    """The machine in one sentence."""
    used = sum(machine.used)
    return title(machine) + say(en=f", {bytes_text(used)} in use.", zh=f"，显存共用去 {bytes_text(used)}。")


@draws(Occupancy)
def occupancy_svg(machine: Occupancy) -> str:
    """The machine as SVG text, on a panel of its own so that it reads on any background."""
    return to_svg(occupancy_picture(machine), panel=True)
