"""Pictures of plans and traces: as SVG in notebooks, as matplotlib Axes from ``draw_…``."""

from .all_reduce import draw_all_reduce
from .batches import draw_batches
from .split import draw_split

__all__ = ["draw_all_reduce", "draw_batches", "draw_split"]
