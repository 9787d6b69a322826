"""Checks of tensors that both backends make: number, shapes, dtypes and devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import torch
from torch import Tensor
from torch._C._distributed_c10d import ReduceOp

from labkit.base.language import wrong
from simgpu import gpu_of

from ..call import CollectiveCall

# c10d::isComplexViewAsRealAllowed
COMPLEX_OPS = frozenset(("SUM", "AVG", "PREMUL_SUM"))


def refuse_complex(call: CollectiveCall) -> NoReturn:
    """Raise C++'s error for a reduction that does not exist for complex numbers."""
    # C++ writes the operation as the letter of its number.
    letter = chr(int(getattr(ReduceOp.RedOpType, call.op)))
    raise RuntimeError(f"{call.kind} does not support{letter}on complex tensors")


def is_contiguous(tensor: Tensor) -> bool:
    """Whether ``tensor`` is contiguous in any memory format."""
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    form = formats.get(tensor.dim())
    return tensor.is_contiguous() or (form is not None and tensor.is_contiguous(memory_format=form))


def check_root_rank(call: CollectiveCall) -> None:
    """Utils.hpp, assertRootRank."""
    if call.root is None or not 0 <= call.root < len(call.ranks):
        refuse(call, f"invalid root rank: {call.root}")


# The names of collectives in C++'s own complaints.
_CPP = {
    "all_reduce": "allreduce", "all_gather": "allgather", "all_gather_single": "allgather",
    "reduce_scatter": "reduce_scatter", "all_to_all": "alltoall", "all_to_all_single": "alltoall_base",
}  # fmt: skip


def refuse(call: CollectiveCall, text: str) -> NoReturn:
    """Raise ``text`` as the call's backend does: ProcessGroupNCCL a ValueError, ProcessGroupGloo a RuntimeError."""
    kind, group = (ValueError, "NCCL") if call.backend == "nccl" else (RuntimeError, "Gloo")
    raise kind(f"ProcessGroup{group}::{_CPP.get(call.kind, call.kind)}: {text}")


def check_tensor_list(call: CollectiveCall, tensors: Sequence[Tensor], like: Tensor) -> None:
    """Refuse ``tensors`` unless it has one tensor for each rank, with the type and size of ``like``."""
    if len(tensors) != len(call.ranks):
        side = "output" if call.kind == "gather" else "input"
        refuse(
            call,
            f"Incorrect {side} list size {len(tensors)}. {side.capitalize()} list size should be "
            f"{len(call.ranks)}, same as size of the process group.",
        )
    check_types_and_sizes(call, tensors, like)


def check_types_and_sizes(call: CollectiveCall, tensors: Sequence[Tensor], like: Tensor) -> None:
    """Utils.hpp, assertTypeAndSizesMatch."""
    for index, tensor in enumerate(tensors):
        if tensor.dtype != like.dtype or device_of(tensor) != device_of(like):
            both = f"expected {_format_options(like)}, got {_format_options(tensor)}"
            refuse(call, f"invalid tensor type at index {index} ({both})")
        if tensor.shape != like.shape:
            both = f"expected {format_sizes(like)}, got {format_sizes(tensor)}"
            refuse(call, f"invalid tensor size at index {index} ({both})")


def device_of(tensor: Tensor) -> str:
    """Return the device of ``tensor`` as text; for a simulated GPU ``"cuda:1"``."""
    gpu = gpu_of(tensor)
    return str(tensor.device) if gpu is None else str(gpu.device)


CTYPES = {
    torch.float32: "float", torch.float64: "double", torch.float16: "c10::Half", torch.bfloat16: "c10::BFloat16",
    torch.int64: "long int", torch.int32: "int", torch.int16: "short int", torch.int8: "signed char",
    torch.uint8: "unsigned char", torch.bool: "bool",
}  # fmt: skip


def _format_options(tensor: Tensor) -> str:
    """c10/core/TensorOptions.cpp, operator<<."""
    kind = CTYPES.get(tensor.dtype, str(tensor.dtype).removeprefix("torch."))
    return (
        f"TensorOptions(dtype={kind}, device={device_of(tensor)}, layout=Strided, requires_grad=false (default), "
        "pinned_memory=false (default), memory_format=(nullopt))"
    )


def format_sizes(tensor: Tensor) -> str:
    return f"({', '.join(map(str, tensor.shape))})"


def check_one_per_rank(call: CollectiveCall, tensors: Sequence[Tensor]) -> None:
    if len(tensors) != len(call.ranks):
        refuse_unchecked(
            en=f"{call.kind}: {len(tensors)} tensors for the {len(call.ranks)} ranks of the group, which need one each",
            zh=f"{call.kind}：组里有 {len(call.ranks)} 个 rank，却给了 {len(tensors)} 个张量：每个 rank 要有一个",
        )


def check_one_dtype(call: CollectiveCall, like: Tensor, tensors: Sequence[Tensor]) -> None:
    for tensor in tensors:
        if tensor.dtype != like.dtype:
            names = [str(one.dtype).removeprefix("torch.") for one in (like, tensor)]
            refuse_unchecked(
                en=f"{call.kind}: {names[0]} and {names[1]} in one call",
                zh=f"{call.kind}：同一次调用里既有 {names[0]} 又有 {names[1]}",
            )


def check_split_sizes(call: CollectiveCall, tensor: Tensor, output: Tensor) -> None:
    """Utils.hpp, checkSplitSizes."""
    given = call.splits or (None, None)
    for one, rows_of_each in zip((tensor, output), given, strict=True):
        rows = one.size(0) if one.dim() else 1
        if not rows_of_each:
            if rows % len(call.ranks):
                raise RuntimeError("Tensor's dim 0 does not divide equally across group size")
        elif len(rows_of_each) != len(call.ranks):
            raise RuntimeError("Number of tensor splits not equal to group size")
        elif sum(rows_of_each) != rows:
            raise RuntimeError("Split sizes doesn't match total dim 0 size")
    if not any(given) and tensor.numel() != output.numel():
        refuse_unchecked(
            en=f"all_to_all_single: the input has shape {list(tensor.shape)}, the output {list(output.shape)}; without "
            "split sizes both need the same number of elements",
            zh=f"all_to_all_single：输入的形状是 {list(tensor.shape)}，输出的形状是 {list(output.shape)}；"
            "不给 split sizes 时，两者的元素个数必须相同",
        )


def refuse_unchecked(*, en: str, zh: str) -> NoReturn:
    """Raise ValueError for arguments that NCCL does not check."""
    en = f"{en} (NCCL does not check this: on real GPUs it reads or writes the wrong memory)"
    zh = f"{zh}（NCCL 不检查这一点：在真实的 GPU 上会读写错误的显存）"
    raise wrong(en=en, zh=zh)
