"""The ``draw_…`` functions, which return matplotlib Axes, and the SVG of objects in a notebook.

The modules of :mod:`labkit.view.pictures` make the pictures; this one converts and checks what users pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ..base.extras import need
from ..base.numbers import MOST_GPUS, instance, integer, must
from ..plans.batches import Batches, batches
from ..plans.footprint import Footprint, Footprints, Occupancy
from ..plans.placement import Placement
from ..plans.ring import AllReduce, Ring, Star, ring_all_reduce
from ..plans.shapes import Cut, Shape
from ..plans.split import Split, split
from ..trace.curves import Curves
from ..trace.memory import MemoryTimeline
from ..trace.trace import Call, Trace
from . import picture_registry
from .page import timeline_of
from .picture import Picture
from .pictures.call_flow import flow_picture
from .pictures.charts import curves_picture
from .pictures.lanes import batches_picture, inputs_picture, memory_picture, occupancy_picture, split_picture
from .pictures.memory_time import memory_time_picture
from .pictures.placement_lanes import placement_picture
from .pictures.ring_steps import all_reduce_picture
from .pictures.shape_blocks import shapes_picture
from .svg import to_svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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


def draw(make: Callable[[], Picture], ax: Axes | None) -> Axes:
    """Paint the picture that ``make`` returns into ``ax``, or a new figure; return the Axes."""
    need("matplotlib")
    from .figure import paint  # matplotlib is heavy: loaded for the first figure

    return paint(make, ax)


def draw_split(data: Split | int, gpus: int | None = None, *, ax: Axes | None = None) -> Axes:
    """Draw which GPU gets which rows; returns the matplotlib Axes.

    data   a :class:`labkit.Split`, or the number of rows, with ``gpus`` beside it.
    ax     the Axes to draw into; a new figure if not given.
    """
    plan = data if isinstance(data, Split) else split(data, integer("gpus", gpus, 1, MOST_GPUS))
    return draw(lambda: split_picture(plan), ax)


def draw_batches(
    data: Batches | int, batch_size: int | None = None, *, gpus: int = 1, ax: Axes | None = None
) -> Axes:
    """Draw one pass over the data; returns the matplotlib Axes.

    data   a :class:`labkit.Batches`, or the number of rows, with ``batch_size`` (and ``gpus``) beside it.
    ax     the Axes to draw into; a new figure if not given.
    """
    plan = (
        data if isinstance(data, Batches) else batches(data, integer("batch_size", batch_size, 1), gpus=gpus)
    )
    return draw(lambda: batches_picture(plan), ax)


def draw_all_reduce(data: AllReduce | int, step: int | None = None, *, ax: Axes | None = None) -> Axes:
    """Draw how ranks sum their gradients, around a ring or through rank 0; returns the matplotlib Axes.

    data   a :class:`labkit.Ring` or a :class:`labkit.Star`; or the number of ranks of a ring, with ``step`` beside it.
    step   0 to 2 × (ranks − 1); the beginning, the middle and the end if not given.
    ax     the Axes to draw into; a new figure if not given.
    """
    plan = data if isinstance(data, AllReduce) else ring_all_reduce(data, step)
    return draw(lambda: all_reduce_picture(plan), ax)


def draw_memory(
    data: Footprints | Sequence[Footprint] | MemoryTimeline | Trace, *, ax: Axes | None = None
) -> Axes:
    """Draw the memory of each GPU; returns the matplotlib Axes.

    data   the result of :func:`labkit.data_parallel_memory`, or a :class:`labkit.Footprint` for each GPU. Of ranks a
           trace or its ``memory``: how many bytes were in use, when.
    ax     the Axes to draw into; a new figure if not given.
    """
    if isinstance(data, Trace):
        data = data.memory
    if isinstance(data, MemoryTimeline):
        timeline = data
        return draw(lambda: memory_time_picture(timeline), ax)
    if isinstance(data, (tuple, list)):
        data = Footprints(tuple(data))
    memory = instance("data", data, Footprints, "labkit.data_parallel_memory")
    if not memory.gpus:
        raise ValueError(must("data", data, en="a Footprint for each GPU", zh="给每块 GPU 一个 Footprint"))
    for gpu, found in enumerate(memory.gpus):
        instance(f"data for cuda:{gpu}", found, Footprint)
    return draw(lambda: memory_picture(memory), ax)


def draw_shapes(data: Shape, gpus: int, *, batch_dim: int = 0, ax: Axes | None = None) -> Axes:
    """Draw how gather joins a model's outputs; returns the matplotlib Axes.

    data       the shape of the output for the whole batch on one GPU, such as ``(65, 32, 5530)``.
    batch_dim  the dimension of the batch, here 1; for any but 0 the fix is drawn beside.
    ax         the Axes to draw into; a new figure if not given.
    """
    return draw(lambda: shapes_picture(data, gpus, batch_dim=batch_dim), ax)


def draw_flow(data: Trace | Split, step: int | None = None, *, call: int = 0, ax: Axes | None = None) -> Axes:
    """Draw one data-parallel call, forward and backward; returns the matplotlib Axes.

    data   a trace of ``labkit.record()``; or a :class:`labkit.Split`, drawn as a Linear(5, 2).
    step   0 to 7: only what exists by that step; None: everything.
    call   the number of the call in the trace.
    ax     the Axes to draw into; a new figure if not given.
    """
    return draw(lambda: flow_picture(data, step, call=call), ax)


def draw_placement(data: Placement, *, ax: Axes | None = None) -> Axes:
    """Draw the contents of each device; returns the matplotlib Axes.

    data   the result of :func:`labkit.placement`.
    ax     the Axes to draw into; a new figure if not given.
    """
    instance("data", data, Placement, "labkit.placement")
    return draw(lambda: placement_picture(data), ax)


def draw_timeline(data: Trace, *, ax: Axes | None = None) -> Axes:
    """Draw what happened when: on each device, or if ranks ran on each rank; returns the Axes.

    data   a trace of ``labkit.record()``.
    ax     the Axes to draw into; a new figure if not given.
    """
    instance("data", data, Trace, "labkit.record()")
    return draw(lambda: timeline_of(data).picture(data), ax)
