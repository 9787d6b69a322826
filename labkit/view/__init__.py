"""Pictures of plans and traces: as SVG in notebooks, as matplotlib Axes from ``draw_…``."""

from .draw import (
    draw_all_reduce,
    draw_batches,
    draw_flow,
    draw_memory,
    draw_scaling,
    draw_shapes,
    draw_split,
    draw_timeline,
)

__all__ = [
    "draw_all_reduce",
    "draw_batches",
    "draw_flow",
    "draw_memory",
    "draw_scaling",
    "draw_shapes",
    "draw_split",
    "draw_timeline",
]
