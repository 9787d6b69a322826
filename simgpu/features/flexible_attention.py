"""Differentiate ``flex_attention`` without a compiler.

PyTorch traces the gradient of the score function with fake tensors, whose gradients end the process on a build without
CUDA (:mod:`.fake_tensors`); here ``torch.func`` computes it. If the score function captures a tensor that needs a
gradient, a compiler makes that an input of the operator; here the call runs as the operators inside flex_attention.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from ..handlers import handles
from ..ops.mode import MachineMode
from ..state.current_machine import replaces
from ..state.gpu import TheMachine

_MODULE: Any = importlib.import_module("torch._higher_order_ops.flex_attention")


@replaces(_MODULE, "create_fw_bw_graph")
def _differentiate(
    _: TheMachine, real: Any, score_mod: Callable[..., Tensor], *__: Any
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return ``score_mod`` and its gradient, as create_fw_bw_graph does, but by ``torch.func``, without tracing."""

    def joint(
        score: Tensor, b: Tensor, h: Tensor, m: Tensor, n: Tensor, grad: Tensor, *buffers: Tensor
    ) -> Any:
        def modify(score: Tensor, *buffers: Tensor) -> Tensor:
            return score_mod(score, b, h, m, n, *buffers)

        of_score, *of_buffers = torch.func.vjp(modify, score, *buffers)[1](grad)
        return [of_score, None, None, None, None, *of_buffers]

    return score_mod, joint


def _captures_gradients(query: Tensor, score_mod: Callable[..., Tensor]) -> bool:
    """Whether ``score_mod`` captures tensors that need gradients."""
    if not torch.is_grad_enabled():
        return False
    # Imported here, because torch._dynamo takes seconds, and looks for a cache folder.
    from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex

    with _disable_current_modes(), TransformGetItemToIndex():
        score = query.detach().new_zeros(())
        return score_mod(score, *[score.int()] * 4).requires_grad


@handles(torch.ops.higher_order.flex_attention, torch.ops.higher_order.flex_attention_backward)
def _attend_flexibly(mode: MachineMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if func is not torch.ops.higher_order.flex_attention_backward and _captures_gradients(*args[:4:3]):
        return mode.general(_MODULE.sdpa_dense, args, kwargs)
    return mode.general(func, args, kwargs)
