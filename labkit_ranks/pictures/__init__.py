"""Pictures of ranks: timelines, who waited for whom, deadlocks, and what each rank holds.

They are registered in :mod:`labkit.view.picture_registry`. A module is imported when its first picture is drawn.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from labkit.view import picture_registry


def _import_on_call(module: str, name: str) -> Callable[[Any], Any]:
    """Return a function that imports ``module`` at its first call, and calls ``name`` in the module."""
    return lambda data: getattr(import_module(f".{module}", __name__), name)(data)


_PARTS = (_import_on_call("rank_lanes", name) for name in ("ranks_picture", "chapters"))
picture_registry.register_rank_timeline(picture_registry.Timeline(*_PARTS))
picture_registry.pictures |= {
    "labkit_ranks.calls.wait_graph.WaitForGraph": _import_on_call("wait_graphs", "wait_for_picture"),
    "labkit_ranks.plans.heat.HeatMaps": _import_on_call("heat_maps", "heat_picture"),
    "labkit_ranks.plans.pipeline.Pipeline": _import_on_call("pipeline_lanes", "pipeline_picture"),
    "labkit.cost.search.Plans": _import_on_call("plan_stacks", "plans_picture"),
}
