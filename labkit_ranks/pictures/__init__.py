"""Pictures of ranks: timelines, who waited for whom, deadlocks, and what each rank holds.

The core asks for them through :mod:`labkit.view.shown`; each is loaded when the first is wanted.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from labkit.view import shown


def _late(module: str, name: str) -> Callable[[Any], Any]:
    """Return a function that loads a module of this folder at its first call, and calls ``name`` there."""
    return lambda data: getattr(import_module(f".{module}", __name__), name)(data)


shown.register_rank_timeline(
    shown.Timeline(_late("rank_lanes", "ranks_picture"), _late("rank_lanes", "chapters"))
)
shown.pictures |= {
    "labkit_ranks.calls.wait_graph.WaitForGraph": _late("wait_graphs", "wait_for_picture"),
    "labkit_ranks.plans.heat.HeatMaps": _late("heat_maps", "heat_picture"),
    "labkit_ranks.plans.pipeline.Pipeline": _late("pipeline_lanes", "pipeline_picture"),
    "labkit.cost.search.Plans": _late("plan_stacks", "plans_picture"),
}
