"""``torch.autocast("cuda")`` on simulated GPUs.

Inside the context there is a second function mode above the machine's. For tensors on a GPU it turns the CPU's own
autocast on around each call, which casts the same matrix products and convolutions, also inside composite functions;
and it casts to float32 where CUDA's list does and the CPU's does not (softmax, norms, losses, exponentials). Tensors on
the host are not cast, as with CUDA's autocast.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from labkit.base.files import rows_beside
from labkit.base.patches import Patch
from labkit.base.tree import tensors_in

from .. import hooks
from ..stack import hands_on, with_mode
from ..state.gpu import TheMachine
from ..state.placement import gpu_of

_LISTS = dict(rows_beside(__file__))
# Functions that CUDA's autocast runs in float32 ("CUDA Ops that can autocast to float32" in PyTorch's documentation of
# torch.amp; aten/src/ATen/autocast_mode.h, AT_FORALL_FP32).
_IN_FLOAT32 = frozenset(_LISTS["float32"].split())
# Functions to run in the widest dtype among the arguments (AT_FORALL_PROMOTE).
_WIDEST = frozenset(_LISTS["widest"].split())
_HALF = (torch.float16, torch.bfloat16)
_UNSAFE = (
    "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.\n"
    "Many models use a sigmoid layer right before the binary cross entropy layer.\n"
    "In this case, combine the two layers using torch.nn.functional.binary_cross_entropy_with_logits\n"
    "or torch.nn.BCEWithLogitsLoss.  binary_cross_entropy_with_logits and BCEWithLogits are\n"
    "safe to autocast."
)


class AutocastMode(TorchFunctionMode):
    """Function mode for the casts of ``torch.autocast("cuda")``."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if types and types[0] is not Tensor and hands_on():
            return NotImplemented
        kwargs = kwargs or {}
        if not torch.is_autocast_enabled("cuda"):
            return func(*args, **kwargs)
        tensors = tensors_in(args, kwargs)
        if not any(gpu_of(tensor) is not None for tensor in tensors):
            return func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        if name == "binary_cross_entropy":
            raise RuntimeError(_UNSAFE)
        differ = name in _WIDEST and len({t.dtype for t in tensors if t.is_floating_point()}) > 1
        if differ or name in _IN_FLOAT32:
            return func(*_cast(args, torch.float32), **_cast(kwargs, torch.float32))
        # Autocast is a dispatch key of a device type, on or off for each thread (aten/src/ATen/autocast_mode.h,
        # is_autocast_enabled). The values are on the CPU, so the CPU's key casts them. Turn it off again at once:
        # CUDA's autocast does not cast tensors on the host.
        before = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
        torch.set_autocast_enabled("cpu", True)
        torch.set_autocast_dtype("cpu", torch.get_autocast_dtype("cuda"))
        try:
            return func(*args, **kwargs)
        finally:
            torch.set_autocast_enabled("cpu", before[0])
            torch.set_autocast_dtype("cpu", before[1])


def _cast(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, Tensor):
        return value.to(dtype) if value.dtype in _HALF and gpu_of(value) is not None else value
    if isinstance(value, (tuple, list)) and type(value) in (tuple, list):
        return type(value)(_cast(item, dtype) for item in value)
    if isinstance(value, dict):
        return {key: _cast(item, dtype) for key, item in value.items()}
    return value


@hooks.patches.add
def patches(machine: TheMachine) -> Iterator[Patch]:
    """Let ``torch.autocast("cuda")`` push the mode."""

    def mode(context: torch.autocast) -> AutocastMode | None:
        # "cuda:1" means the same. A context that turns autocast off needs no mode: an outer one looks whether it is on.
        if context.device.partition(":")[0] != "cuda" or not context._enabled:
            return None
        for begin in hooks.half_precision:
            begin(machine)
        return AutocastMode()

    yield from with_mode(torch.autocast, mode)
