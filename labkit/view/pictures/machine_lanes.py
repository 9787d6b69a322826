"""The picture of a machine: a lane for each GPU, as long as its memory, filled as far as it is in use."""

from __future__ import annotations

from ...base.language import say
from ...base.numbers import plural
from ...base.units import bytes_text
from ...plans.footprint import Occupancy
from ..layout import devices, gpu_lanes
from ..picture import Picture, Sketch, Text

_LEFT, _RIGHT, _TOP = 76, 172, 34
# In use, but too little to see at this scale: it is shown all the same.
_LEAST = 2.0


def occupancy_picture(machine: Occupancy) -> Picture:
    """The GPUs of a machine; a byte is equally wide on all of them."""
    shown, lane = gpu_lanes(len(machine.used), _TOP, _LEFT, _RIGHT)
    scale = lane.across / max(machine.capacities, default=1)
    sketch = Sketch()
    sketch.add(Text(14, 22, _title(machine), 13, bold=True))
    for at, gpu in lane.one_by_one(sketch, shown, lambda gpus: _counted(machine, gpus)):
        found = machine.used[gpu]
        used, capacity = bytes_text(found), bytes_text(machine.capacities[gpu])
        tip = f"cuda:{gpu} · {used} / {capacity}"
        sketch.add(
            lane.name(at, f"cuda:{gpu}"),
            lane.bar(at, _LEFT, machine.capacities[gpu] * scale, label=f"cuda:{gpu} memory", tip=tip),
            lane.note(at, say(en=f"{used} of {capacity}", zh=f"{used} / {capacity}"), muted=not found),
        )
        if found:
            width = max(found * scale, _LEAST)
            sketch.add(lane.bar(at, _LEFT, width, gpu, label=f"cuda:{gpu} used", tip=tip))
    used = bytes_text(sum(machine.used))
    description = _title(machine) + say(en=f", {used} in use.", zh=f"，显存共用去 {used}。")
    return sketch.picture(lane.y(len(shown)) + 10, description)


def _counted(machine: Occupancy, gpus: range) -> str:
    used = bytes_text(sum(machine.used[k] for k in gpus))
    count = plural(len(gpus), "more GPU")
    words = say(en=f"{count}, {used} in use", zh=f"还有 {len(gpus)} 块 GPU，共用去 {used}")
    return devices(gpus) + say(en=": ", zh="：") + words


def _title(machine: Occupancy) -> str:
    """``4 simulated GPUs``."""
    count = len(machine.used)
    if machine.simulated:
        return say(en=plural(count, "simulated GPU"), zh=f"{count} 块模拟 GPU")
    return say(en=plural(count, "real GPU"), zh=f"{count} 块真 GPU")
