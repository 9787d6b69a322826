"""``DTensor`` cuts attention up by heads or by rows of the batch, with the CPU's kernel as with CUDA's.

``scaled_dot_product_attention`` of the CPU build is an operator that CUDA does not have
(aten/src/ATen/native/transformers/attention.cpp), and torch has sharding strategies for CUDA's alone
(torch/distributed/tensor/_ops/_matrix_ops.py). These say for the CPU's what those say.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from ....base.patches import Patch


def rows(dispatcher: Any) -> Iterator[Patch]:
    """The strategies that ``dispatcher``, that of DTensor's operators, is to know."""
    aten, propagator = torch.ops.aten, dispatcher.sharding_propagator
    known, of_schemas = propagator.op_strategy_funcs, propagator.op_to_schema_info
    forward = aten._scaled_dot_product_flash_attention_for_cpu.default
    backward = aten._scaled_dot_product_flash_attention_for_cpu_backward.default
    if forward in known:  # torch has its own by now
        return
    info = sys.modules["torch.distributed.tensor._op_schema"].RuntimeSchemaInfo
    # Output and logsumexp of query, key and value; their gradients of grad_out, the three, output and logsumexp.
    ours = {
        forward: partial(_strategy, outputs=2, inputs=3),
        backward: partial(_strategy, outputs=3, inputs=6),
    }
    yield Patch(propagator, "op_strategy_funcs", known | ours)
    yield Patch(
        propagator, "op_to_schema_info",
        {**of_schemas, forward: info(3, ["attn_mask"]), backward: info(6, ["attn_mask"])},
    )  # fmt: skip


def _strategy(schema: Any, outputs: int, inputs: int) -> Any:
    """Everything is [batch, heads, …]: all replicated, or all cut along the one or the other."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor._ops.utils import expand_to_full_mesh_op_strategy

    mask = schema.kwargs_schema.get("attn_mask")
    ways: list[list[Any]] = []
    for cut in (None, 0, 1):
        place = Replicate() if cut is None else Shard(cut)
        way = [place] * (outputs + inputs)
        if mask is not None:
            shape = mask.shape
            if cut is not None and len(shape) == 4 and shape[cut] != 1:
                continue  # it would have to be cut too; tensors by keyword are handed on as they are
            way.append(Replicate())
        ways.append(way)
    return expand_to_full_mesh_op_strategy(
        schema.get_mesh_from_args(validate=False), schema, ways, input_index=outputs
    )
