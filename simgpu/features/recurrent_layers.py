"""Refuse the states of recurrent layers that cuDNN refuses."""

from __future__ import annotations

from typing import Any

import torch

from labkit.base.tree import tensors_in

from ..handlers import Handler, wraps_handlers
from ..state.placement import gpu_of


@wraps_handlers(torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu)
def _check_states(go_on: Handler, mode: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    # aten/src/ATen/native/cudnn/RNN.cpp, _cudnn_rnn. The arguments are (data, states, weights, …), or
    # (data, batch_sizes, states, weights, …) for packed sequences.
    if gpu_of(args[0]) is not None and torch.backends.cudnn.enabled:
        states = args[2] if isinstance(args[3], (tuple, list)) else args[1]
        for name, state in zip(("hx", "cx"), tensors_in(states), strict=False):
            if not state.is_contiguous():
                raise RuntimeError(f"rnn: {name} is not contiguous")
    return go_on(mode, func, args, kwargs)
