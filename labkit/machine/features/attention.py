"""``sdpa_kernel``: which of CUDA's kernels for attention take a call, by CUDA's rules; the values are the CPU's.

As long as the mathematical one is allowed, one of them takes every call. Without it, each says in PyTorch's words why
it does not (aten/src/ATen/native/transformers: cuda/sdp_utils.cpp, sdp_utils_cpp.h). Nested tensors, for which there
are other rules, are computed.
"""

from __future__ import annotations

import inspect
import types
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.backends import cuda

from ...base.files import rows_beside
from .. import hooks
from ..handlers import Handler, around
from ..ops.mode import MachineMode
from ..state.placement import gpu_of
from ..torch_api.cuda import DeviceProperties

# What can be said against a call, and in whose order each kernel asks.
_WORDS = {row[1]: row[2] for row in rows_beside(__file__) if row[0] == "words"}
_KERNELS = {row[1]: row[2].split() for row in rows_beside(__file__) if row[0] == "kernel"}
_HALVES = (torch.float16, torch.bfloat16)
# As C++ writes them.
_NAMES = {torch.float16: "Half", torch.bfloat16: "BFloat16", torch.float32: "Float"}
_TYPES = {
    torch.float16: "c10::Half",
    torch.bfloat16: "c10::BFloat16",
    torch.float32: "float",
    torch.float64: "double",
}


def _call(
    query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False,
    scale: Any = None, enable_gqa: bool = False,
) -> None: ...  # fmt: skip


_SIGNATURE = inspect.signature(_call)


@around(torch.nn.functional.scaled_dot_product_attention)
def _attend(
    go_on: Handler, mode: MachineMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    query: Any = args[0] if args else kwargs.get("query")
    gpu = gpu_of(query) if isinstance(query, Tensor) else None
    if gpu is not None and query.dtype in _HALVES:
        for begin in hooks.halves:
            begin(mode.machine)
    on = cuda.mem_efficient_sdp_enabled(), cuda.flash_sdp_enabled(), cuda.cudnn_sdp_enabled()
    if gpu is None or cuda.math_sdp_enabled() or not any(on):
        return go_on(mode, func, args, kwargs)
    bound = _SIGNATURE.bind(*args, **kwargs)
    bound.apply_defaults()
    asked = _Asked(**bound.arguments, gpu=DeviceProperties(gpu))
    if not any(tensor.is_nested for tensor in asked.all):
        reasons = [
            asked.objection(name) if on_now else f"{name} attention has been runtime disabled."
            for on_now, name in zip(on, _KERNELS, strict=True)
        ]
        if None not in reasons:
            for name, reason in zip(_KERNELS, reasons, strict=True):
                title = "Memory efficient" if name == "Memory Efficient" else f"{name} attention"
                warnings.warn(f"{title} kernel not used because:", stacklevel=1)
                warnings.warn(str(reason), stacklevel=1)
            raise RuntimeError("No available kernel. Aborting execution.")
    cuda.enable_math_sdp(True)  # what the CPU has for all of them
    try:
        return go_on(mode, func, args, kwargs)
    finally:
        cuda.enable_math_sdp(False)


class _Asked(types.SimpleNamespace):
    """A call of attention on ``gpu``, by the names of its arguments."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.all = q, k, v = self.query, self.key, self.value
        self.q, self.k, self.v, self.new = q, k, v, self.gpu.major >= 8
        self.sizes = [list(tensor.shape) for tensor in self.all]
        self.last = [sizes[-1] for sizes in self.sizes]
        self.strides = [tensor.stride()[-1] for tensor in self.all]
        self.types = [_TYPES.get(tensor.dtype, str(tensor.dtype)[6:]) for tensor in self.all]
        half = q.dtype in _HALVES
        wanted = 8 if half else 4
        self.least = max(4 * self.new, wanted if self.new or (self.gpu.major == 7 and half) else 1)
        wide = (self.gpu.major, self.gpu.minor, self.last[0], self.last[2]) == (9, 0, 192, 128)
        self.limit = 192 if wide else 128
        self.allowed = ""

    def objection(self, kernel: str) -> str | None:
        """Why ``kernel`` does not take it, by the first thing that C++ finds; None if it does."""
        kinds = [*_HALVES[: 1 + self.new], *([torch.float32] if kernel == "Memory Efficient" else [])]
        kinds.sort(key=[torch.float16, torch.float32, torch.bfloat16].index)
        self.kinds, self.allowed = kinds, ", ".join(_NAMES[kind] for kind in kinds)
        found = next((what for what in _KERNELS[kernel] if _OBJECTS[what](self)), None)
        return None if found is None else _WORDS[found].format(**vars(self))


_OBJECTS: dict[str, Callable[[_Asked], Any]] = {
    "dimensions": lambda a: {tensor.dim() for tensor in a.all} != {4},
    "last": lambda a: a.last[0] != a.last[1] or any(not size or size % a.least for size in a.last),
    "mask": lambda a: a.attn_mask is not None,
    "heads": lambda a: len({*a.last}) > 1 or a.last[0] > 256,
    "flash's-GPU": lambda a: not a.new,
    "cuDNN's-GPU": lambda a: not a.new,
    "causal": lambda a: a.is_causal and a.sizes[0][2] != a.sizes[1][2],
    "order": lambda a: torch.get_deterministic_debug_mode() == 2,
    "sixteenths": lambda a: a.dropout_p * 16 % 1,
    "large": lambda a: max(a.last[0], a.last[2]) > a.limit,
    "eights": lambda a: a.last[0] % 8 or a.last[2] % 8,
    "one-key": lambda a: a.sizes[1][2] == 1,
    "one-query": lambda a: a.dropout_p and a.sizes[0][2] == 1,
    "empty": lambda a: not a.sizes[0][2] or not a.sizes[1][2],
    "strides": lambda a: any(one != 1 and size != 1 for one, size in zip(a.strides, a.last, strict=True)),
    "batch": lambda a: len({sizes[0] for sizes in a.sizes}) > 1,
    "numbers": lambda a: not a.enable_gqa and len({sizes[1] for sizes in a.sizes}) > 1,
    "groups": lambda a: a.enable_gqa and (a.sizes[1][1] != a.sizes[2][1] or a.sizes[0][1] % a.sizes[1][1]),
    "dtypes": lambda a: len({*a.types}) > 1 or a.q.dtype not in a.kinds,
}
