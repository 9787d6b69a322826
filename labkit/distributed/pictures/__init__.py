"""Pictures of ranks: in time, who waited for whom, where all stood when none could go on, and what each holds.

The core asks for them through :mod:`labkit.view.shown`; each is loaded when the first is wanted.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...trace.trace import Trace
from ...view import shown
from ...view.picture import Picture
from ..calls.waits import WaitForGraph
from ..plans.heat import HeatMaps
from ..plans.pipeline import Pipeline


def _picture(trace: Trace) -> Picture:
    from .rank_lanes import ranks_picture

    return ranks_picture(trace)


def _chapters(trace: Trace) -> Iterable[shown.Chapter]:
    from .chapters import chapters

    return chapters(trace)


def _stands(graph: WaitForGraph) -> Picture:
    from .wait_graphs import wait_for_picture

    return wait_for_picture(graph)


def _heat(heat: HeatMaps) -> Picture:
    from .heat_maps import heat_picture

    return heat_picture(heat)


def _pipeline(found: Pipeline) -> Picture:
    from .pipeline_lanes import pipelines_picture

    return pipelines_picture([found])


shown.shows_ranks(shown.Timeline(_picture, _chapters))
shown.pictures |= {WaitForGraph: _stands, HeatMaps: _heat, Pipeline: _pipeline}
