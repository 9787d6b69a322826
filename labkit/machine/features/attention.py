"""``sdpa_kernel``: which of CUDA's kernels for attention take a call, by CUDA's rules; the values are the CPU's.

As long as the mathematical one is allowed, one of them takes every call. Without it, each says in PyTorch's words why
it does not (aten/src/ATen/native/transformers: cuda/sdp_utils.cpp, sdp_utils_cpp.h). Nested tensors, for which there
are other rules, are computed.
"""

from __future__ import annotations

import inspect
import types
import warnings
from collections.abc import Iterator
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

_WORDS = dict(rows_beside(__file__))
_HALVES = (torch.float16, torch.bfloat16)
# As C++ writes them.
_NAMES = dict(zip((torch.float16, torch.bfloat16, torch.float32), ("Half", "BFloat16", "Float"), strict=True))
_TYPES = {torch.float16: "c10::Half", torch.bfloat16: "c10::BFloat16", torch.float32: "float",
          torch.float64: "double"}  # fmt: skip


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
    asked = types.SimpleNamespace(**bound.arguments, gpu=DeviceProperties(gpu))
    asked.all = (asked.query, asked.key, asked.value)
    if not any(tensor.is_nested for tensor in asked.all):
        reasons = [
            next(rules(asked), None) if on_now else f"{name} attention has been runtime disabled."
            for on_now, (name, rules) in zip(on, _KERNELS.items(), strict=True)
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


# Each says why the kernel does not take a call, in the order in which C++ asks; nothing if it does.


def _efficient(asked: Any) -> Iterator[str]:
    new, half = asked.gpu.major >= 8, asked.query.dtype in _HALVES
    yield from _dimensions(asked)
    cores = new or (asked.gpu.major == 7 and half)
    least = max(4 if new else 1, (8 if half else 4) if cores else 1)
    query, key, value = (tensor.size(-1) for tensor in asked.all)
    if query != key or not query or not value or query % least or value % least:
        yield _say("last", asked, least=least)
    yield from _dense(asked)
    yield from _dtypes(asked, torch.float16, torch.float32, *([torch.bfloat16] if new else []))


def _flash(asked: Any) -> Iterator[str]:
    yield from _dimensions(asked)
    if asked.attn_mask is not None:
        yield _say("mask", asked)
    if len({tensor.size(-1) for tensor in asked.all}) > 1 or asked.query.size(-1) > 256:
        yield _say("heads", asked)
    if asked.gpu.major < 8:
        yield _say("flash's GPU", asked)
    if asked.is_causal and asked.query.size(-2) != asked.key.size(-2):
        yield _say("causal", asked)
    yield from _dtypes(asked, *_HALVES)
    yield from _dense(asked)


def _cudnn(asked: Any) -> Iterator[str]:
    yield from _dimensions(asked)
    strict = torch.are_deterministic_algorithms_enabled()
    if strict and not torch.is_deterministic_algorithms_warn_only_enabled():
        yield _say("order", asked)
    yield from _dtypes(asked, *(_HALVES if asked.gpu.major >= 8 else _HALVES[:1]))
    if asked.gpu.major < 8:
        yield _say("cuDNN's GPU", asked)
    if asked.dropout_p * 16 % 1:
        yield _say("sixteenths", asked)
    yield from _dense(asked, same_heads=False)
    sizes = asked.query.size(-1), asked.value.size(-1)
    limit = 192 if (asked.gpu.major, asked.gpu.minor, *sizes) == (9, 0, 192, 128) else 128
    if max(sizes) > limit:
        yield _say("large", asked, limit=limit)
    if any(size % 8 for size in sizes):
        yield _say("eights", asked)
    if asked.key.size(2) == 1:
        yield _say("one key", asked)
    if asked.dropout_p and asked.query.size(2) == 1:
        yield _say("one query", asked)


_KERNELS = {"Memory Efficient": _efficient, "Flash": _flash, "cuDNN": _cudnn}


def _dimensions(asked: Any) -> Iterator[str]:
    if {tensor.dim() for tensor in asked.all} != {4}:
        yield _say("dimensions", asked)


def _dense(asked: Any, *, same_heads: bool = True) -> Iterator[str]:
    if not asked.query.size(-2) or not asked.key.size(-2):
        yield _say("empty", asked)
    if any(tensor.stride(-1) != 1 and tensor.size(-1) != 1 for tensor in asked.all):
        yield _say("strides", asked)
    if len({tensor.size(0) for tensor in asked.all}) > 1:
        yield _say("batch", asked)
    query, key, value = (tensor.size(-3) for tensor in asked.all)
    if key != value or (query % key if asked.enable_gqa else query != key and same_heads):
        yield _say("groups" if asked.enable_gqa else "numbers", asked)


def _dtypes(asked: Any, *allowed: torch.dtype) -> Iterator[str]:
    if len({tensor.dtype for tensor in asked.all}) > 1 or asked.query.dtype not in allowed:
        types = [_TYPES.get(tensor.dtype, str(tensor.dtype)[6:]) for tensor in asked.all]
        yield _say("dtypes", asked, allowed=", ".join(_NAMES[dtype] for dtype in allowed), types=types)


def _say(what: str, asked: Any, **more: Any) -> str:
    q, k, v = asked.all
    sizes = [list(tensor.shape) for tensor in asked.all]
    return _WORDS[what].format(q=q, k=k, v=v, gpu=asked.gpu, sizes=sizes, last=[s[-1] for s in sizes],
                               strides=[t.stride()[-1] for t in asked.all], **more)  # fmt: skip
