"""Pictures of plans and traces: as SVG in notebooks, as matplotlib Axes from ``draw_…``."""

from .batches import draw_batches
from .flow import draw_flow
from .split import draw_split

__all__ = ["draw_batches", "draw_flow", "draw_split"]
