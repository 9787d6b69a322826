"""Pictures of plans and traces: as SVG in notebooks, as matplotlib Axes from ``draw_…``."""

from . import occupancy  # noqa: F401 (registers the picture of a machine)
from .all_reduce import draw_all_reduce
from .batches import draw_batches
from .flow import draw_flow
from .memory import draw_memory
from .scaling import draw_scaling
from .shapes import draw_shapes
from .split import draw_split
from .timeline import draw_timeline

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
