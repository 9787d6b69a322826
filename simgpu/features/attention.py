"""Choose CUDA's attention kernel for a call by CUDA's rules. The CPU's kernel computes the values.

The mathematical kernel takes every call. With it disabled, the other kernels refuse calls in PyTorch's words
(aten/src/ATen/native/transformers: cuda/sdp_utils.cpp, sdp_utils_cpp.h), except those with nested tensors, whose rules
differ. Where a tensor subclass or a dispatch mode sees operators, the call becomes CUDA's operator of the chosen kernel
(:mod:`.attention_kernels`).
"""

from __future__ import annotations

import inspect
import os
import types
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._C import _len_torch_dispatch_stack
from torch.backends import cuda
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from labkit.base.files import rows_beside
from labkit.base.tree import tensors_in

from .. import hooks
from ..handlers import Handler, wraps_handlers
from ..ops.mode import MachineMode
from ..state.current_machine import call_with_machine, work
from ..state.placement import gpu_of, put_all
from ..torch_api.cuda import DeviceProperties
from . import attention_kernels

# The objections to a call, and the order in which each kernel checks them.
_WORDS = {row[1]: row[2] for row in rows_beside(__file__) if row[0] == "words"}
_KERNELS = {row[1]: row[2].split() for row in rows_beside(__file__) if row[0] == "kernel"}
# The numbers of torch.nn.attention.SDPBackend, and CUDA's order of preference (0: the mathematical kernel).
_NUMBERS = {1: "Flash", 2: "Memory Efficient", 3: "cuDNN"}
_ORDER = [1, 2, 0, 3, 4]
_RING = "torch.distributed.tensor.experimental._context_parallel._attention"
_HALVES = (torch.float16, torch.bfloat16)
# C++'s names of dtypes.
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


def _is_cudnn_deprioritized() -> bool:
    return os.environ.get("TORCH_CUDNN_SDPA_DEPRIORITIZED") == "1"


_SIGNATURE = inspect.signature(_call)


@wraps_handlers(torch.nn.functional.multi_head_attention_forward)
def _attend_in_layer(
    go_on: Handler, mode: MachineMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Turn the mode, which is off inside this function, on again for the attention of DTensors and context_parallel."""
    functional, attend = vars(torch.nn.functional), torch.nn.functional.scaled_dot_product_attention
    if attend.__module__ != _RING and not is_traceable_wrapper_subclass(args[0]):
        return go_on(mode, func, args, kwargs)

    def attend_with_machine(*args: Any, **kwargs: Any) -> Any:
        put_all((args, kwargs), work.gpu)
        return call_with_machine(attend, *args, **kwargs)

    functional["scaled_dot_product_attention"] = attend_with_machine
    try:
        return go_on(mode, func, args, kwargs)
    finally:
        functional["scaled_dot_product_attention"] = attend


@wraps_handlers(torch.nn.functional.scaled_dot_product_attention)
def _attend(
    go_on: Handler, mode: MachineMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    query: Any = args[0] if args else kwargs.get("query")
    gpu = gpu_of(query) if isinstance(query, Tensor) else None
    if gpu is not None and query.dtype in _HALVES:
        for begin in hooks.half_precision:
            begin(mode.machine)
    flash, math = cuda.flash_sdp_enabled(), cuda.math_sdp_enabled()
    on = dict(zip(_KERNELS, (cuda.mem_efficient_sdp_enabled(), flash, cuda.cudnn_sdp_enabled()), strict=True))
    is_seen = gpu is not None and (_len_torch_dispatch_stack() > 0 or is_traceable_wrapper_subclass(query))
    if gpu is None or (math and not is_seen) or not any(on.values()):
        return go_on(mode, func, args, kwargs)
    bound = _SIGNATURE.bind(*args, **kwargs)
    bound.apply_defaults()
    call = _AttentionCall(**bound.arguments, gpu=DeviceProperties(gpu))
    if not any(tensor.is_nested for tensor in call.all):
        kernel = call.choose_kernel(on, math)
        if (
            is_seen
            and kernel is not None
            and all(gpu_of(tensor) is gpu for tensor in tensors_in(args, kwargs))
        ):
            attention_kernels.begin(mode.machine)
            return go_on(mode, partial(_run_operator, call, kernel), args, kwargs)
    cuda.enable_math_sdp(True)  # the CPU's kernel for all choices
    cuda.enable_flash_sdp(flash and not is_seen)
    try:
        return go_on(mode, func, args, kwargs)
    finally:
        cuda.enable_math_sdp(math)
        cuda.enable_flash_sdp(flash)


def _run_operator(call: _AttentionCall, kernel: str, *_: Any, **__: Any) -> Tensor:
    """Call CUDA's operator of ``kernel`` (transformers/attention.cpp, scaled_dot_product_attention)."""
    q, k, v = call.all
    mask = call.attn_mask
    # Casts here: the CPU's autocast, which casts other calls (.autocast), does not know this operator.
    if torch.is_autocast_enabled("cpu") and torch.is_autocast_enabled("cuda"):
        q, k, v = (tensor.to(torch.get_autocast_dtype("cuda")) for tensor in (q, k, v))
    if mask is not None:
        if mask.dtype is torch.bool:
            mask = torch.zeros_like(mask, dtype=q.dtype).masked_fill(~mask, -torch.inf)
        mask = mask.to(q.dtype).expand(q.size(0), q.size(1), q.size(2), k.size(2))
    options = call.dropout_p, call.is_causal
    if kernel == "Flash":
        return attention_kernels.FLASH(q, k, v, *options, False, scale=call.scale)[0]
    with_logsumexp = torch.is_grad_enabled() and any(one.requires_grad for one in (q, k, v))
    operator = attention_kernels.EFFICIENT if kernel == "Memory Efficient" else attention_kernels.CUDNN
    return operator(q, k, v, mask, with_logsumexp, *options, scale=call.scale)[0]


class _AttentionCall(types.SimpleNamespace):
    """A call of attention on ``gpu``, with its arguments as attributes."""

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

    def choose_kernel(self, on: dict[str, bool], math: bool) -> str | None:
        """Return the first kernel in CUDA's order that is on and takes the call; None for the mathematical one."""
        reasons = {
            name: self.objection(name) if on_now else f"{name} attention has been runtime disabled."
            for name, on_now in on.items()
        }
        order = torch._C._get_sdp_priority_order()
        if (
            order == _ORDER
            and self.gpu.major in (9, 10)
            and not self.gpu.minor
            and not _is_cudnn_deprioritized()
        ):
            order = [3, *order]  # cuda/sdp_utils.cpp, check_prefer_cudnn_attention
        for number in order:
            if number == 0 and math:
                return None
            if reasons.get(_NUMBERS.get(number, ""), "") is None:
                return _NUMBERS[number]
        for name, reason in reasons.items():
            title = "Memory efficient" if name == "Memory Efficient" else f"{name} attention"
            warnings.warn(f"{title} kernel not used because:", stacklevel=1)
            warnings.warn(str(reason), stacklevel=1)
        raise RuntimeError("No available kernel. Aborting execution.")

    def objection(self, kernel: str) -> str | None:
        """Return the first reason for which ``kernel`` refuses the call; None if it takes the call."""
        kinds = [*_HALVES[: 1 + self.new], *([torch.float32] if kernel == "Memory Efficient" else [])]
        kinds.sort(key=[torch.float16, torch.float32, torch.bfloat16].index)
        self.kinds, self.allowed = kinds, ", ".join(_NAMES[kind] for kind in kinds)
        found = next((what for what in _KERNELS[kernel] if _OBJECTS[what](self)), None)
        return None if found is None else _WORDS[found].format(**vars(self))


_OBJECTS: dict[str, Callable[[_AttentionCall], Any]] = {
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
