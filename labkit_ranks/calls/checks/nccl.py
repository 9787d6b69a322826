"""Checks of ProcessGroupNCCL and NCCL, and of arguments that NCCL ignores: a function for each kind of call."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.distributed import DistBackendError

from simgpu import gpu_of

from ..call import CollectiveCall
from .arguments import (
    COMPLEX_OPS,
    check_one_dtype,
    check_one_per_rank,
    check_root_rank,
    check_split_sizes,
    check_tensor_list,
    device_of,
    is_contiguous,
    refuse_complex,
    refuse_unchecked,
)

NCCL_VERSION = 2, 29, 7  # of torch 2.13's CUDA wheels


def nccl_error(kind: str, last: str) -> DistBackendError:
    """Return the error of C10D_NCCL_CHECK for ``kind`` ("invalid usage", "invalid argument") and NCCL's last words."""
    version = ".".join(map(str, NCCL_VERSION))
    details = {
        "invalid usage": "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.",
        "invalid argument": "ncclInvalidArgument: Invalid value for an argument.",
    }
    return DistBackendError(
        "NCCL error in: torch/csrc/distributed/c10d/NCCLUtils.cpp, "
        f"{kind} (run with NCCL_DEBUG=WARN for details), NCCL version {version}\n{details[kind]}\n"
        f"Last error:\n{last}"
    )


# NCCLUtils.hpp, ncclDataType, as built for CUDA: dtypes with an NCCL type, or sent as bytes.
_PREMUL = {torch.float16, torch.float32, torch.bfloat16, torch.float64}
_NO_SUMS = {torch.float8_e5m2fnuz, torch.float8_e4m3fnuz, torch.float8_e8m0fnu}
_INTEGERS = {torch.int8, torch.uint8, torch.int32, torch.int64, torch.bool}
_NCCL_TYPES = _PREMUL | _INTEGERS | _NO_SUMS | {torch.float8_e5m2, torch.float8_e4m3fn}
_NCCL_OPS = frozenset(("SUM", "PRODUCT", "MIN", "MAX", "AVG", "PREMUL_SUM"))


def _check_dense(tensor: Tensor, contiguous: bool = True) -> None:
    """ProcessGroupNCCL.cpp, check_gpu_single_tensor."""
    if tensor.layout is not torch.strided or gpu_of(tensor) is None:
        raise ValueError("Tensors must be CUDA and dense")
    if contiguous and not is_contiguous(tensor):
        raise ValueError("Tensors must be contiguous")


def _check_dtype(tensor: Tensor) -> None:
    if tensor.dtype not in _NCCL_TYPES:
        name = tensor.type().rpartition(".")[2].removesuffix("Tensor")  # c10::toString(ScalarType)
        raise TypeError(f"Input tensor data type is not supported for NCCL process group: {name}")


def _check_reduction(op: str, tensor: Tensor) -> None:
    """ProcessGroupNCCL.cpp, getNcclReduceOp."""
    if op not in _NCCL_OPS:
        raise ValueError(f"Cannot use ReduceOp.{op} with NCCL" if op[0] == "B" else "Unhandled ReduceOp")
    if op == "AVG" and tensor.dtype is torch.bool:
        raise TypeError("Cannot use ReduceOp.AVG with boolean inputs")
    if op == "PREMUL_SUM" and tensor.dtype not in _PREMUL and not tensor.is_complex():
        raise TypeError("PreMulSum Data type must be half, float, bfloat16 or double")


def _check_reduced_tensors(call: CollectiveCall, tensors: Sequence[Tensor]) -> None:
    """Check tensors of a reduction. all_reduce and reduce take complex numbers as pairs of real ones."""
    op, pairs = call.op, call.kind in ("all_reduce", "reduce")
    for tensor in tensors:
        kind = tensor.dtype
        if pairs and tensor.is_complex():
            if op not in COMPLEX_OPS:
                refuse_complex(call)
        elif kind in _NO_SUMS and call.kind != "reduce":
            raise RuntimeError("Unsupported Float8 type for NCCL reduction")
        else:
            _check_dtype(tensor)
        if op != "SUM":
            _check_reduction(op, tensor)


def _check_same_gpu(call: CollectiveCall, tensors: Sequence[Tensor]) -> None:
    for tensor in tensors:
        gpu = gpu_of(tensor)
        if gpu is None:
            raise ValueError("Tensors must be CUDA and dense")
        if str(gpu.device) != call.device:
            raise ValueError("Expected list of tensors on the same device")


def _check_root(call: CollectiveCall, name: str) -> None:
    if call.root is None or not 0 <= call.root < len(call.ranks):
        # NCCL: src/misc/argcheck.cc, ArgsCheck
        raise nccl_error(
            "invalid argument",
            f"{name} : invalid root {call.root} (root should be in the 0..{len(call.ranks)} range)",
        )


def all_reduce(call: CollectiveCall) -> None:
    tensors = call.inputs
    if len(tensors) != 1:
        _check_coalesced(call, tensors)
    elif tensors[0].layout is not torch.strided:
        why = "NCCL does not support all_reduce with sparse tensors"
        raise RuntimeError(f"{why}. Please use dense tensors instead.")
    else:
        _check_dense(tensors[0])
    _check_reduced_tensors(call, tensors)


def _check_coalesced(call: CollectiveCall, tensors: Sequence[Tensor]) -> None:
    """ProcessGroupNCCL.cpp, check_gpu_tensors_same_device."""
    if not tensors:
        raise ValueError("Tensor list must be nonempty")
    for tensor in tensors:
        if tensor.layout is not torch.strided:
            raise ValueError("Tensors must be CUDA and dense")
        if tensor.dtype != tensors[0].dtype:
            raise TypeError("Tensors must have identical type")
        if not torch.ops.aten.is_non_overlapping_and_dense.default(tensor):
            raise ValueError("Tensors must be non-overlapping and dense")
    _check_same_gpu(call, tensors)


def broadcast(call: CollectiveCall) -> None:
    for tensor in call.outputs or call.inputs:
        _check_dense(tensor)
        if not tensor.is_complex():
            _check_dtype(tensor)
    _check_root(call, "Broadcast")


def reduce(call: CollectiveCall) -> None:
    _check_dense(call.inputs[0])
    _check_reduced_tensors(call, call.inputs)
    _check_root(call, "Reduce")


def all_gather(call: CollectiveCall) -> None:
    mine, outputs = call.inputs[0], call.outputs
    _check_dense(mine)
    _check_dtype(mine)
    check_one_per_rank(call, outputs)
    _check_same_gpu(call, outputs)
    check_one_dtype(call, mine, outputs)
    if all(output.shape == outputs[0].shape for output in outputs):
        if outputs[0].numel() != mine.numel():
            refuse_unchecked(
                en=f"all_gather: each output has shape {list(outputs[0].shape)}, the input {list(mine.shape)}",
                zh=f"all_gather：每个输出的形状是 {list(outputs[0].shape)}，而输入的形状是 {list(mine.shape)}",
            )
    elif outputs[call.at].numel() != mine.numel():
        raise ValueError("Tensor input and output of _broadcast_oop must have the same number of elements ")


def all_gather_single(call: CollectiveCall) -> None:
    for tensor, output in zip(call.inputs, call.outputs, strict=True):
        _check_dense(tensor)
        _check_dense(output)
        if tensor.dtype != output.dtype:
            raise TypeError("output tensor must have the same type as input tensor")
        if tensor.numel() * len(call.ranks) != output.numel():
            raise ValueError("output tensor size must be equal to world_size times input tensor size")
        _check_dtype(tensor)
        _check_same_gpu(call, (tensor, output))


def reduce_scatter(call: CollectiveCall) -> None:
    output, pieces = call.outputs[0], call.inputs
    _check_dense(output)
    check_one_per_rank(call, pieces)
    _check_same_gpu(call, pieces)
    _check_reduced_tensors(call, [*pieces, output])
    check_one_dtype(call, output, pieces)
    if pieces[call.at].numel() != output.numel():
        if all(piece.shape == pieces[0].shape for piece in pieces):
            refuse_unchecked(
                en=f"reduce_scatter: each input has shape {list(pieces[0].shape)}, the output {list(output.shape)}",
                zh=f"reduce_scatter：每个输入的形状是 {list(pieces[0].shape)}，而输出的形状是 {list(output.shape)}",
            )
        raise ValueError("Tensor input and output of _reduce_oop must have the same number of elements ")


def reduce_scatter_single(call: CollectiveCall) -> None:
    for tensor, output in zip(call.inputs, call.outputs, strict=True):
        if tensor.dtype != output.dtype:
            raise TypeError("input tensor must be the same type as the output tensor.")
        if tensor.numel() != output.numel() * len(call.ranks):
            raise ValueError("input tensor must be the same size as output size times world size")
        _check_reduced_tensors(call, (output,))
        _check_same_gpu(call, (tensor, output))


def all_to_all_single(call: CollectiveCall) -> None:
    tensor, output = call.inputs[0], call.outputs[0]
    _check_dense(output)
    _check_dense(tensor)
    _check_dtype(tensor)
    check_one_dtype(call, tensor, (output,))
    _check_same_gpu(call, (tensor, output))
    _check_not_in_place(call)
    check_split_sizes(call, tensor, output)


def all_to_all(call: CollectiveCall) -> None:
    check_one_per_rank(call, call.inputs)
    check_one_per_rank(call, call.outputs)
    for output, tensor in zip(call.outputs, call.inputs, strict=True):
        _check_dense(output)
        _check_dense(tensor)
        if not device_of(output) == device_of(tensor) == call.device:
            raise RuntimeError("Tensors must be on the same device")
        _check_dtype(tensor)
    check_one_dtype(call, call.inputs[0], [*call.inputs, *call.outputs])
    _check_not_in_place(call)


def _check_not_in_place(call: CollectiveCall) -> None:
    """Refuse an all-to-all in place: NCCL sends and receives at the same time (its guide, "In-place Operations")."""
    places = {output.data_ptr() for output in call.outputs if output.numel()}
    if any(tensor.numel() and tensor.data_ptr() in places for tensor in call.inputs):
        refuse_unchecked(
            en=f"{call.kind}: an output shares memory with an input, which may be overwritten before it is sent",
            zh=f"{call.kind}：输出和输入占用同一块显存，输入可能还没发出就被覆盖了",
        )


def gather(call: CollectiveCall) -> None:
    check_root_rank(call)
    _check_dense(call.inputs[0])
    if call.at == call.root:
        check_tensor_list(call, call.outputs, call.inputs[0])
        _check_same_gpu(call, call.outputs)
    _check_dtype(call.inputs[0])


def scatter(call: CollectiveCall) -> None:
    check_root_rank(call)
    if call.at == call.root:
        check_tensor_list(call, call.inputs, call.outputs[0])
    _check_same_gpu(call, [*call.inputs, *call.outputs])
    _check_dtype(call.outputs[0])


def _check_message(call: CollectiveCall) -> None:
    tensor = (call.inputs or call.outputs)[0]
    _check_dense(tensor, contiguous=False)
    _check_dtype(tensor)
    if call.root is None:
        raise NotImplementedError("ProcessGroupNCCL does not support recvAnysource")
    _check_root(call, call.kind.capitalize())


send = recv = _check_message
