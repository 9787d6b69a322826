"""Checks of ProcessGroupGloo and gloo: a function for each kind of call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..call import CollectiveCall
from .arguments import (
    COMPLEX_OPS,
    CTYPES,
    check_one_dtype,
    check_root_rank,
    check_split_sizes,
    check_tensor_list,
    check_types_and_sizes,
    format_sizes,
    is_contiguous,
    refuse,
    refuse_complex,
)

# ProcessGroupGlooDetail.hpp, GENERATE_ALL_TYPES
_GLOO_TYPES = frozenset(
    (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.bool, torch.int32,
     torch.int64)
)  # fmt: skip
_INTEGRAL = frozenset((torch.int8, torch.uint8, torch.bool, torch.int32, torch.int64))


def _check_dtype(tensor: Tensor, pairs: bool = False) -> None:
    if tensor.dtype not in _GLOO_TYPES and not (pairs and tensor.is_complex()):
        raise RuntimeError("Invalid scalar type")


def _check_dense(call: CollectiveCall, tensors: Sequence[Tensor]) -> None:
    for tensor in tensors:
        if tensor.layout is not torch.strided:
            refuse(call, "only supports dense tensors")


def _check_reduction(call: CollectiveCall, tensor: Tensor) -> None:
    op = call.op
    if op == "PREMUL_SUM":
        raise RuntimeError("Cannot use ReduceOp.PREMUL_SUM with Gloo")
    if tensor.is_complex() and op not in COMPLEX_OPS:
        refuse_complex(call)
    _check_dtype(tensor, pairs=True)
    if op in ("BAND", "BOR", "BXOR") and tensor.dtype not in _INTEGRAL:
        raise RuntimeError(f"Cannot use ReduceOp.{op} with non-integral dtype")


def all_reduce(call: CollectiveCall) -> None:
    if not call.inputs:
        refuse(call, "requires non-empty tensor list")
    for tensor in call.inputs:
        if tensor.layout is not torch.strided:
            if call.op != "SUM":
                why = "allreduce of sparse tensors only works with ReduceOp.SUM"
                refuse(call, f"unsupported reduction operation ({why})")
            continue
        _check_reduction(call, tensor)


def broadcast(call: CollectiveCall) -> None:
    check_root_rank(call)
    tensors = call.outputs or call.inputs
    _check_dense(call, tensors)
    for tensor in tensors:
        _check_dtype(tensor, pairs=True)


def reduce(call: CollectiveCall) -> None:
    check_root_rank(call)
    _check_dense(call, call.inputs)
    _check_reduction(call, call.inputs[0])


def all_gather(call: CollectiveCall) -> None:
    mine = call.inputs[0]
    _check_dense(call, call.inputs)
    if len(call.outputs) != len(call.ranks):
        both = f"expected length {len(call.ranks)}, got {len(call.outputs)}"
        refuse(call, f"invalid output tensor list at index 0 ({both})")
    check_types_and_sizes(call, call.outputs, mine)
    _check_dtype(mine)


def all_gather_single(call: CollectiveCall) -> None:
    for tensor, output in zip(call.inputs, call.outputs, strict=True):
        _check_dense(call, (tensor, output))
        members = len(call.ranks)
        if output.numel() != tensor.numel() * members:
            # C++ cuts the output into pieces (_allgather_base) and compares the size of a piece.
            each = output.numel() // members
            refuse(call, f"invalid tensor size at index 0 (expected {format_sizes(tensor)}, got ({each}))")
        if output.dtype != tensor.dtype:
            check_types_and_sizes(call, (output,), tensor)
        _check_dtype(tensor)


def gather(call: CollectiveCall) -> None:
    check_root_rank(call)
    _check_dense(call, call.inputs)
    if call.at == call.root:
        check_tensor_list(call, call.outputs, call.inputs[0])
    _check_dtype(call.inputs[0])


def scatter(call: CollectiveCall) -> None:
    check_root_rank(call)
    _check_dense(call, call.outputs)
    if call.at == call.root:
        check_tensor_list(call, call.inputs, call.outputs[0])
    _check_dtype(call.outputs[0])


def reduce_scatter(call: CollectiveCall) -> None:
    if len(call.inputs) != len(call.ranks):
        raise RuntimeError("invalid input tensor list size, must be world size")
    for tensor in call.inputs:
        _check_equal("outputs[0].dtype() == inputs[0][i].dtype()", call.outputs[0].dtype, tensor.dtype)
    _check_reduction(call, call.outputs[0])


def reduce_scatter_single(call: CollectiveCall) -> None:
    for tensor, output in zip(call.inputs, call.outputs, strict=True):
        _check_equal("outputTensors[i].dtype() == inputTensors[i].dtype()", output.dtype, tensor.dtype)
        rows = (output.size(0) if output.dim() else 1) * len(call.ranks)
        if tensor.numel() != output.numel() * len(call.ranks):
            given = tensor.size(0) if tensor.dim() else 1
            said = f"outputShape[0] * worldSize == inputShape[0] ({rows} vs. {given})"
            raise RuntimeError(f"Check failed: {said}. ")
        _check_reduction(call, output)


def _check_equal(text: str, left: Any, right: Any) -> None:
    """Raise the error of CHECK_EQ (c10/util/logging_is_not_google_glog.h) unless both are equal."""
    if left != right:
        names = CTYPES.get(left, left), CTYPES.get(right, right)
        raise RuntimeError(f"Check failed: {text} ({names[0]} vs. {names[1]}). ")


def all_to_all_single(call: CollectiveCall) -> None:
    tensor, output = call.inputs[0], call.outputs[0]
    if not is_contiguous(tensor):
        raise ValueError("Tensors must be contiguous")
    _check_dtype(tensor)
    check_one_dtype(call, tensor, (output,))
    check_split_sizes(call, tensor, output)


def all_to_all(call: CollectiveCall) -> None:
    for tensors, side in ((call.inputs, "input"), (call.outputs, "output")):
        if len(tensors) != len(call.ranks):
            size = len(call.ranks)
            refuse(call, f"{side} tensor list size {len(tensors)} does not match world size {size}")
    for tensor in (*call.inputs, *call.outputs):
        _check_dtype(tensor)
    check_one_dtype(call, call.inputs[0], [*call.inputs, *call.outputs])


def _check_message(call: CollectiveCall) -> None:
    tensors = call.inputs or call.outputs
    if len(tensors) != 1:
        raise RuntimeError("ProcessGroupGloo::send takes a single tensor")
    if tensors[0].layout is not torch.strided or not tensors[0].is_contiguous():
        raise RuntimeError("input tensor has to be contiguous")
    if call.tag < 0:
        raise RuntimeError("Tag must be nonnegative")


send = recv = _check_message
