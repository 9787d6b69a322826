"""Make up for the dtypes and checks in which the CPU's kernels differ from CUDA's.

Refuse dtypes that CUDA refuses, in its words. Compute halves that only CUDA takes in float32, and round. Turn
errors of the CPU's kernels into CUDA's device-side assertions. Only failed calls come here, and calls with a dtype that
CUDA may refuse.
"""

from __future__ import annotations

import functools
import re
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from labkit.base.texts import texts_beside
from labkit.base.tree import map_tensors, tensors_in

from ... import hooks
from ...handlers import HANDLERS, ByDtype, functions_in_row, handles
from ...stack import OperatorMode
from ...state.errors import cuda_error
from ...state.gpu import Gpu
from ...state.placement import gpu_of, type_in_errors
from .dtypes import NAMES, NO_KERNEL, is_cpu_refusal, lacking, refusal, refusing

_TEXTS = texts_beside(__file__)


@hooks.call_failed.add
def answer_failed_call(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], error: Exception, home: Gpu
) -> Any:
    """Return what CUDA computes where the CPU's kernels raised ``error``, or raise CUDA's own error."""
    words = str(error)
    found = lacking(words)
    if found is not None:
        return _compute_in_float32(func, args, kwargs, found)
    if func in _WITH_OUT_DTYPE and ".dtype" in words:
        return _with_out_dtype(func, args, kwargs)
    if func in _NORMS and words.startswith("expected scalar type"):
        return _normalize_mixed_batch(func, args, kwargs, error)
    mixed = _mixed_dtypes_message(func, args, kwargs, words)
    if mixed is not None:
        raise RuntimeError(mixed) from None
    if _OF_A_VALUE.match(words) or func is torch._assert_async:  # its message is the user's
        operator = _operator_that_raises(func, args, kwargs)
        if operator is not None:
            raise _device_assert(operator, home.device, words) from None
    elif isinstance(error, NotImplementedError) and is_cpu_refusal(words):
        error.add_note(_TEXTS["named-otherwise"]())
    elif isinstance(error, NotImplementedError) and "with arguments from the 'CPU' backend" in words:
        error.add_note(_TEXTS["no-operator"]())
    return NotImplemented


# CUDA refuses, and the CPU computes.


class _Refusing(OperatorMode):
    """Dispatch mode to refuse operators as CUDA does, within one call."""

    def operator(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name = func._schema.name.removeprefix("aten::")
        tensors = tensors_in(args, kwargs)
        if name in NO_KERNEL and tensors:
            func.redispatch(torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA), *args, **kwargs)
        error = refusal(name.removesuffix("_"), tensors[0], args, kwargs) if tensors else None
        if error is None:
            return func(*args, **kwargs)
        if not func._schema.is_mutable:
            with suppress(NotImplementedError):
                func(*args, **kwargs)  # raises if the shapes do not fit, which torch checks first
        raise error


def _refuse(mode: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if not any(gpu_of(tensor) is not None for tensor in tensors_in(args, kwargs)):
        return mode.general(func, args, kwargs)
    with _Refusing():
        return mode.general(func, args, kwargs)


for _function, _dtypes in refusing():
    by_dtype = HANDLERS.setdefault(_function, ByDtype())
    if isinstance(by_dtype, ByDtype):
        by_dtype.update(dict.fromkeys(_dtypes, _refuse))


@handles(*functions_in_row("of the CPU alone"))
def _refuse_cpu_operator(mode: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Raise the dispatcher's error for an operator without a kernel for CUDA."""
    if any(gpu_of(tensor) is not None for tensor in tensors_in(args, kwargs)):
        key = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)
        getattr(func, func.overloads()[0]).redispatch(key, *args, **kwargs)
    return mode.general(func, args, kwargs)


def _mixed_dtypes_message(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], words: str) -> str | None:
    """Return CUDA's message for mixed dtypes, which the CPU's kernels refuse with ``words``; None for other errors."""
    if words.startswith("expected m1 and m2 to have the same dtype"):  # cuda/Blas.cpp, addmm_out_cuda_impl
        return words.replace("m1 and m2", "mat1 and mat2", 1)
    if func in _LAYER_NORMS and words.startswith("mixed dtype (CPU)"):
        return _other_dtype_message(args, kwargs)
    if func in functions_in_row("convolutions") and re.match(
        r"expected scalar type|Input type .* and weight type", words
    ):
        # Convolution.cpp, check_input_same_type_as_parameters
        given = dict(zip(("input", "weight"), args, strict=False)) | kwargs
        mine, theirs = type_in_errors(given["input"]), type_in_errors(given["weight"])
        return f"Input type ({mine}) and weight type ({theirs}) should be the same"
    if func in _NORMS and words.startswith("mixed dtype (CPU)"):
        given = dict(zip(_NORMS[func], args, strict=False)) | kwargs
        values = given["input"]
        # Without weights, or with weights in bfloat16, cuDNN is not used.
        weight = values if given.get("weight") is None else given["weight"]
        other = weight.dtype not in (values.dtype, torch.bfloat16)
        if other and values.dtype in (torch.float32, torch.float64):
            # cudnn/BatchNorm.cpp, TensorUtils.cpp, checkSameType
            return (
                "Expected tensor for argument #1 'input' to have the same type as tensor for argument #2 'weight'; but "
                f"type {type_in_errors(values)} does not equal {type_in_errors(weight)} "
                "(while checking arguments for cudnn_batch_norm)"
            )
    return None


_LAYER_NORMS = (torch.nn.functional.layer_norm, torch.layer_norm)


def _normalize_halves(mode: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Normalize a half, with weights of the same dtype as CUDA demands: the CPU's kernels take float32 too."""
    result = mode.general(func, args, kwargs)
    words = _other_dtype_message(args, kwargs)
    if words is not None and result.numel() and gpu_of(result) and not torch.is_autocast_enabled("cuda"):
        raise RuntimeError(words)
    return result


for _function in (*_LAYER_NORMS, torch.nn.functional.group_norm, torch.group_norm):
    HANDLERS[_function] = ByDtype(dict.fromkeys((torch.float16, torch.bfloat16), _normalize_halves))


def _other_dtype_message(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """Return the message of ``data_ptr<T>`` (cuda/*_norm_kernel.cu) if a weight has another dtype than the input."""
    dtype, *others = [tensor.dtype for tensor in tensors_in(args, kwargs)]
    other = next((other for other in others if other is not dtype), dtype)
    return None if other is dtype else f"expected scalar type {NAMES[dtype]} but found {NAMES[other]}"


def _fail(error: Exception, _: Any) -> None:
    raise error


# Only CUDA computes.

_HALVES = (torch.float16, torch.bfloat16)


def _compute_in_float32(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], narrow: torch.dtype) -> Any:
    """Compute ``func`` with all tensors of dtype ``narrow`` in float32, and round results and gradients."""
    # (original, wider copy, version before the call): a copy with another version was written, and is copied back.
    copies: list[tuple[Tensor, Tensor, int]] = []

    def widen(_: str, tensor: Tensor) -> Tensor:
        if tensor.dtype is not narrow:
            return tensor
        wider = tensor.float()
        copies.append((tensor, wider, wider._version))
        return wider

    def round_result(_: str, tensor: Tensor) -> Tensor:
        for original, wider, version in copies:
            if wider is tensor and wider._version != version:
                return original
        return tensor.to(narrow) if tensor.dtype is torch.float32 else tensor

    args, kwargs = map_tensors(args, widen), map_tensors(kwargs, widen)
    if kwargs.get("dtype") is narrow:
        kwargs["dtype"] = torch.float32
    result = func(*args, **kwargs)
    for original, wider, version in copies:
        if wider._version != version:  # written in place, or by out=
            if original.shape != wider.shape:
                original.resize_(wider.shape)
            original.copy_(wider)
    return map_tensors(result, round_result)


# Products with out_dtype=, which only CUDA has -> the position of the first factor (cuda/Blas.cpp).
_WITH_OUT_DTYPE = {torch.mm: 0, torch.bmm: 0, torch.addmm: 1, torch.baddbmm: 1}


def _with_out_dtype(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Compute ``torch.mm(a, b, out_dtype=torch.float32)`` of halves, with sums in float32."""
    given = [value for value in args if isinstance(value, torch.dtype)]
    wanted = given[0] if given else kwargs["out_dtype"]
    args = tuple(value for value in args if not isinstance(value, torch.dtype))
    kwargs = {name: value for name, value in kwargs.items() if name != "out_dtype"}
    factor_dtype = tensors_in(args, kwargs)[_WITH_OUT_DTYPE[func]].dtype
    if wanted is not factor_dtype and not (
        wanted is torch.float32 and factor_dtype in (torch.float16, torch.bfloat16)
    ):
        raise RuntimeError("out_dtype must be the same as input dtype or fp32 for fp16/bf16 inputs")

    def widen(_: str, tensor: Tensor) -> Tensor:
        return tensor.to(wanted) if tensor.dtype is factor_dtype else tensor

    return func(*map_tensors(args, widen), **map_tensors(kwargs, widen))


# Function -> its first arguments, in order.
_NORMS = {
    torch.nn.functional.batch_norm: ("input", "running_mean", "running_var", "weight", "bias"),
    torch.batch_norm: ("input", "weight", "bias", "running_mean", "running_var"),
}


def _normalize_mixed_batch(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], error: Exception) -> Any:
    """Compute ``batch_norm`` of halves with weights in half precision and statistics in float32.

    The CPU wants weights in float32. CUDA takes each dtype as it is and computes in float32, but refuses in some
    backward kernels for images (cuda/Normalization.cu, batch_norm_backward_cuda).
    """
    names = _NORMS[func]
    given = dict(zip(names, args, strict=False)) | kwargs
    values, running = given["input"], given.get("running_mean")
    narrow = values.dtype
    if narrow not in (torch.float16, torch.bfloat16) or getattr(running, "dtype", None) is not torch.float32:
        raise error
    for name in ("weight", "bias"):
        if getattr(given.get(name), "dtype", None) is narrow:
            given[name] = given[name].float()
    sums = any(getattr(given.get(name), "requires_grad", False) for name in ("weight", "bias"))
    sums = sums or given.get("training", args[len(names)] if len(args) > len(names) else False)
    result = func(*(given.pop(name, None) for name in names), *args[len(names) :], **given)
    layout = {4: torch.channels_last, 5: torch.channels_last_3d}.get(values.dim())
    channels_last = values.is_contiguous() and values.stride(1) == 1
    channels_last |= layout is not None and values.is_contiguous(memory_format=layout)
    if sums and values.requires_grad and result.requires_grad and not channels_last:
        # cuda/Normalization.cuh, get_packed_accessor
        words = f"Expected running_mean to have type {NAMES[narrow]} but got Float"
        result.grad_fn.register_prehook(functools.partial(_fail, RuntimeError(words)))
    return result


# CUDA asserts.

# Errors of the CPU's kernels about values, which CUDA's kernels assert (IndexKernel.cu, Indexing.cu,
# ScatterGatherKernel.cu, EmbeddingBag.cu, Loss.cu, NLLLoss2d.cu, Multi*Margin*.cu, MaxUnpooling.cu, Distribution*.cu,
# TensorCompare.cu, Repeat.cu). Errors about shapes and dtypes are raised by the host's code for both.
_OF_A_VALUE = re.compile(
    r"index out of range in self|(index_copy_\(\): )?index -?\d+ is out of bounds for dimension"
    r"|out of range: tried to access index|Target -?\d+ is out of bounds|target out of range"
    r"|argument #2 'target' is out of range|Index -?\d+ of input takes value|Class values must be"
    r"|probability tensor contains either|invalid multinomial distribution|Expected Tensor with single nonzero value"
    r"|Expected p_in >= 0 && p_in <= 1|all elements of (input|target) should be between 0 and 1"
    r"|Found an invalid max index|repeats can not be negative|invalid Poisson rate"
    r"|Number of elements of source < number of ones in mask"
)
_ASSERT = 710  # cudaErrorAssert


def _device_assert(operator: str, device: torch.device, words: str) -> torch.AcceleratorError:
    """Return CUDA's error for a failed assertion on the device, with the CPU's ``words`` as a note."""
    error: Any = cuda_error(_ASSERT, "Assert", "device-side assert triggered")
    words = words.partition("\n")[0].partition("  (Could this")[0].rstrip(".")
    error.add_note(_TEXTS["asserted"](operator=operator, device=device, words=words))
    return error


def _operator_that_raises(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """Call ``func`` again and return the failing ATen operator; None for errors outside of operators."""
    last = _Last()
    try:
        with last:
            func(*args, **kwargs)
    except (RuntimeError, IndexError):
        if last.inside is None and func is torch.nn.functional.one_hot:
            return "one_hot"  # composite; on CUDA, scatter's kernel checks (native/Onehot.cpp)
        return last.inside
    return None


class _Last(OperatorMode):
    """Dispatch mode that notes in which operator an error was raised."""

    inside: str | None = None

    def operator(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.inside = func._schema.name.removeprefix("aten::")
        result = func(*args, **kwargs)
        self.inside = None
        return result
