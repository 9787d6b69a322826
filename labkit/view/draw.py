"""The SVG of objects in a notebook: each type with its module of :mod:`labkit.view.pictures`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..cost import Scaling
from ..plans.batches import Batches
from ..plans.footprint import Footprints, Occupancy
from ..plans.placement import Placement
from ..plans.ring import Ring, Star
from ..plans.shapes import Cut
from ..plans.split import Split
from ..trace.curves import Curves
from ..trace.memory import MemoryTimeline
from ..trace.trace import Call, Trace
from . import picture_registry
from .page import timeline_of
from .picture import Picture
from .pictures.call_flow import flow_picture
from .pictures.charts import curves_picture, scaling_picture
from .pictures.lanes import batches_picture, inputs_picture, memory_picture, occupancy_picture, split_picture
from .pictures.memory_time import memory_time_picture
from .pictures.placement_lanes import placement_picture
from .pictures.ring_steps import all_reduce_picture
from .svg import to_svg

# Type -> its picture in a notebook. Other packages add theirs to picture_registry.pictures.
_SHOWN: dict[type, Callable[[Any], Picture]] = {
    Split: split_picture,
    Batches: batches_picture,
    Ring: all_reduce_picture,
    Star: all_reduce_picture,
    Placement: placement_picture,
    Footprints: memory_picture,
    Occupancy: occupancy_picture,
    Trace: lambda trace: timeline_of(trace).picture(trace),
    Call: flow_picture,
    MemoryTimeline: memory_time_picture,
    Scaling: scaling_picture,
    Curves: curves_picture,
    Cut: inputs_picture,
}


def svg_of(data: object) -> str | None:
    """Return the picture of a plan, a trace or a prediction, on a panel that fits any background; None for other
    objects.
    """
    kind = type(data)
    make = _SHOWN.get(kind) or picture_registry.pictures.get(f"{kind.__module__}.{kind.__qualname__}")
    return make and to_svg(make(data), panel=True)
