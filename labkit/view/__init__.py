"""Pictures of plans and traces: as SVG in notebooks, as matplotlib Axes from ``draw_…``."""

from .pictures import machine_lanes  # noqa: F401 (registers the picture of a machine)
from .pictures.batch_lanes import draw_batches
from .pictures.call_flow import draw_flow
from .pictures.memory_lanes import draw_memory
from .pictures.ring_steps import draw_all_reduce
from .pictures.scaling_charts import draw_scaling
from .pictures.shape_blocks import draw_shapes
from .pictures.split_lanes import draw_split
from .pictures.timeline import draw_timeline

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
