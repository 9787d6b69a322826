"""The chapters of a page about a trace of ranks, and the function that draws who waited."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ...base.language import say
from ...base.numbers import instance
from ...trace.trace import Trace
from ...view.draw import draw
from ...view.pictures.memory_time import memory_time_picture
from ...view.shown import Chapter
from ..calls.waits import WaitForGraph
from .captions import caption
from .rank_lanes import ranks_picture
from .wait_graphs import wait_for_picture, waited_picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# So many collectives are shown large, of the first and of the last.
_CLOSE = 24


def chapters(trace: Trace) -> Iterator[Chapter]:
    """The whole of a trace, its beginning and its end, who waited for whom, and the memory each rank had in use."""
    yield say(en="The whole run", zh="整个运行过程"), ranks_picture(trace), repr(trace)
    meetings = trace.meetings()
    if len(meetings) > 2 * _CLOSE:
        first = trace.between(float("-inf"), meetings[_CLOSE - 1].stop)
        last = trace.between(meetings[-_CLOSE].at, float("inf"))
        yield caption("page", "first-collectives", count=_CLOSE), ranks_picture(first), ""
        yield caption("page", "last-collectives", count=_CLOSE), ranks_picture(last), ""
    if len(trace.ranks) > 1:
        yield say(en="Who waited for whom", zh="谁等了谁"), waited_picture(trace), ""
    if trace.samples:
        yield say(en="Memory", zh="显存"), memory_time_picture(trace.memory), repr(trace.memory)


def draw_waits(data: Trace | WaitForGraph, *, ax: Axes | None = None) -> Axes:
    """Draw which rank waited for which; returns the matplotlib Axes.

    data   a trace of ranks: the seconds that each stood still, by the rank that came last. Of ranks that could not go
           on, the :class:`labkit.WaitForGraph`: where each stands, and for whom it waits.
    ax     the Axes to draw into; a new figure if not given.

    Raises TypeError for anything else.
    """
    if isinstance(data, WaitForGraph):
        graph = data
        return draw(lambda: wait_for_picture(graph), ax)
    trace = instance("data", data, Trace, "labkit.record()")
    return draw(lambda: waited_picture(trace), ax)
