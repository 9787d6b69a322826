"""Caches DTensor's sharding of the results of operations for all ranks.

PyTorch caches it in each process. Ranks cannot share that cache, because each has meshes of its own; but apart from the
mesh the answer is the same, and takes milliseconds for each operation and kind of arguments. So the first rank works it
out, and the others get a copy with their own mesh.

Not shared are answers that depend on the rank or change: shapes of its own shard, and placements with a state.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from operator import is_
from typing import Any

import torch

from labkit.base.patches import Patch, Patches
from simgpu import TheMachine

from ..rank.rank import current_thread_rank

_MODULE = "torch.distributed.tensor._sharding_prop"


class NotShareable(Exception):
    """Raised for values of a single rank."""


class _Meshes:
    """The meshes of a rank, by the facts that all ranks share."""

    def __init__(self) -> None:
        self._own: dict[Any, Any] = {}

    def common(self, mesh: Any) -> Any:
        name = mesh._flatten_rank_map, mesh._layout, mesh._device_type, mesh._mesh_dim_names
        self._own[name] = mesh
        return name

    def own(self, name: Any) -> Any:
        if name not in self._own:
            raise NotShareable
        return self._own[name]


class ShardingCache:
    """The shardings of one world. The cache is active once DTensor is imported and :meth:`look` has seen it."""

    def __init__(self, machine: TheMachine) -> None:
        self._machine = machine
        self._found: dict[Any, Any] = {}
        self._patches = Patches(self._patch)
        self._in = False

    def look(self) -> None:
        if not self._in and hasattr(sys.modules.get(_MODULE), "ShardingPropagator"):
            self._in = True
            self._machine.add_patches(self._patches)

    def close(self) -> None:
        self._found.clear()
        if self._in:
            self._in = False
            self._machine.remove_patches(self._patches)

    def _patch(self) -> list[Patch]:
        kind: Any = sys.modules[_MODULE].ShardingPropagator
        name = "propagate_op_sharding_non_cached"
        return [Patch(kind, name, self._sharing(vars(kind)[name]))]

    def _sharing(self, work_out: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        def propagate(propagator: Any, schema: Any) -> Any:
            if current_thread_rank() is None:
                return work_out(propagator, schema)
            to = _Meshes()
            try:
                key = _with_meshes(schema, to.common), torch.get_default_dtype()
                found = self._found.get(key)
            except (NotShareable, TypeError):  # not hashable
                return work_out(propagator, schema)
            # A rank may have other rules, as while context parallelism is active.
            known = (
                propagator.op_strategy_funcs,
                propagator.op_single_dim_strategy_funcs,
                propagator.op_to_rules,
            )
            rules = [of.get(schema.op) for of in known]
            with suppress(NotShareable):
                if found is not None and all(map(is_, found[0], rules)):
                    return _with_meshes(found[1], to.own)
            result = work_out(propagator, schema)
            if not result.use_val_from_redistribute_schema:  # such as the shape of the rank's shard
                with suppress(NotShareable):
                    self._found[key] = rules, _with_meshes(result, to.common)
            return result

        return propagate


def _with_meshes(value: Any, mesh: Callable[[Any], Any]) -> Any:
    """Copy a value of DTensor's sharding, with ``mesh(…)`` of its meshes. Raises NotShareable."""
    Spec, Schema, Sharding, plain = _dtensor_classes()  # noqa: N806 (classes)
    kind = type(value)
    if kind is Spec:
        if not plain.issuperset(map(type, value.placements)):
            raise NotShareable
        moved = copy.copy(value)
        moved.mesh = mesh(value.mesh)
        return moved
    if kind is tuple or kind is list:
        return kind([_with_meshes(one, mesh) for one in value])
    if kind is dict:
        return {name: _with_meshes(one, mesh) for name, one in value.items()}
    if kind is Schema:
        arguments = _with_meshes(value.args_schema, mesh), _with_meshes(value.kwargs_schema, mesh)
        return Schema(value.op, *arguments, value.schema_info)
    if kind is Sharding:
        return Sharding(
            _with_meshes(value.output_spec, mesh), _with_meshes(value.redistribute_schema, mesh),
            value.needs_redistribute, value.use_val_from_redistribute_schema,
        )  # fmt: skip
    return value


@cache
def _dtensor_classes() -> tuple[type, type, type, frozenset[type]]:
    """Return DTensor's classes of shardings, and the placements without a state."""
    from torch.distributed.tensor import Partial, Replicate, Shard
    from torch.distributed.tensor._dtensor_spec import DTensorSpec
    from torch.distributed.tensor._op_schema import OpSchema, OutputSharding
    from torch.distributed.tensor._ops._math_ops import _NormPartial
    from torch.distributed.tensor.placement_types import _StridedShard

    plain = frozenset((Partial, Replicate, Shard, _StridedShard, _NormPartial))
    return DTensorSpec, OpSchema, OutputSharding, plain
