"""What NCCL, gloo and c10d refuse in one rank's own arguments, in their own words.

The words are PyTorch 2.13's: torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp, ProcessGroupGloo.cpp, Utils.hpp,
NCCLUtils.cpp, and those of NCCL itself (src/misc/argcheck.cc). What c10d's Python refuses (a group without the
caller, no group yet, lists that are no lists) it still refuses itself, before it comes here.

Where NCCL would read or write past the end of a tensor, or copy what nobody asked for, without a word, it is said
here in both languages (:func:`_silent`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn, Protocol

import torch
from torch import Tensor
from torch._C._distributed_c10d import ReduceOp
from torch.distributed import DistBackendError

from ..base.language import say
from ..machine.state.placement import gpu_of
from .call import Call

NCCL_VERSION = 2, 29, 7  # what torch 2.13's CUDA wheels have


class Checked(Protocol):
    """What is asked of a group."""

    bound_device_id: torch.device | None
    _destroyed: bool


def check(call: Call, group: Checked) -> None:
    """Raise what PyTorch raises for a call whose arguments its backend does not take.

    RuntimeError, ValueError, TypeError or torch.distributed.DistBackendError, as C++ does.
    """
    backend = call.backend
    if not backend:
        # ProcessGroup.hpp, getBackend
        raise RuntimeError(f"No backend type associated with device type {call.device.partition(':')[0]}")
    if group._destroyed:
        # NCCLUtils.cpp, NCCLComm::getNcclComm
        raise DistBackendError(f"NCCL communicator was aborted on rank {call.at}. ")
    checks = _NCCL if backend == "nccl" else _GLOO
    if backend == "nccl" and call.kind != "barrier":
        bound = group.bound_device_id
        if bound is not None and str(bound) != call.device:
            # ProcessGroupNCCL.cpp, initNCCLComm
            raise DistBackendError(
                "Attempt to perform collective on tensor not on device passed to init_process_group"
            )
    found = checks.get(call.kind)
    if found is not None:
        found(call)


def nccl_error(kind: str, last: str) -> DistBackendError:
    """What C10D_NCCL_CHECK makes of ``kind`` ("invalid usage", "invalid argument") and NCCL's last words."""
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


# NCCL.

# NCCLUtils.hpp, ncclDataType, as built for CUDA: these have a type there, or travel as bytes.
_NCCL_TYPES = frozenset(
    getattr(torch, name)
    for name in "int8 uint8 float32 float64 int32 int64 float16 bool bfloat16 float8_e5m2 float8_e4m3fn "
    "float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu".split()
    if hasattr(torch, name)
)
_NO_SUMS = frozenset(
    getattr(torch, name)
    for name in ("float8_e5m2fnuz", "float8_e4m3fnuz", "float8_e8m0fnu")
    if hasattr(torch, name)
)
_PREMUL = frozenset((torch.float16, torch.float32, torch.bfloat16, torch.float64))
_NCCL_OPS = frozenset(("SUM", "PRODUCT", "MIN", "MAX", "AVG", "PREMUL_SUM"))
# c10d::isComplexViewAsRealAllowed
_COMPLEX_OPS = frozenset(("SUM", "AVG", "PREMUL_SUM"))

# c10::toString(ScalarType)
_SCALAR_TYPES = {
    torch.int16: "Short", torch.complex32: "ComplexHalf", torch.complex64: "ComplexFloat",
    torch.complex128: "ComplexDouble", torch.uint16: "UInt16", torch.uint32: "UInt32", torch.uint64: "UInt64",
}  # fmt: skip


def _dense(tensor: Tensor, contiguous: bool = True) -> None:
    """ProcessGroupNCCL.cpp, check_gpu_single_tensor."""
    if tensor.layout is not torch.strided or gpu_of(tensor) is None:
        raise ValueError("Tensors must be CUDA and dense")
    if contiguous and not tensor.is_contiguous() and not _is_contiguous(tensor):
        raise ValueError("Tensors must be contiguous")


def _is_contiguous(tensor: Tensor) -> bool:
    """Whether it is contiguous in the memory format that its strides suggest."""
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    form = formats.get(tensor.dim())
    return tensor.is_contiguous() or (form is not None and tensor.is_contiguous(memory_format=form))


def _type_for_nccl(tensor: Tensor) -> None:
    if tensor.dtype not in _NCCL_TYPES:
        name = _SCALAR_TYPES.get(tensor.dtype, str(tensor.dtype).removeprefix("torch."))
        raise TypeError(f"Input tensor data type is not supported for NCCL process group: {name}")


def _reduction_of_nccl(op: str, tensor: Tensor) -> None:
    """ProcessGroupNCCL.cpp, getNcclReduceOp."""
    if op not in _NCCL_OPS:
        raise ValueError(f"Cannot use ReduceOp.{op} with NCCL" if op[0] == "B" else "Unhandled ReduceOp")
    if op == "AVG" and tensor.dtype is torch.bool:
        raise TypeError("Cannot use ReduceOp.AVG with boolean inputs")
    if op == "PREMUL_SUM" and tensor.dtype not in _PREMUL and not tensor.is_complex():
        raise TypeError("PreMulSum Data type must be half, float, bfloat16 or double")


def _summed(call: Call, tensors: Sequence[Tensor]) -> None:
    """Tensors that are reduced: all_reduce and reduce look at complex ones as pairs of numbers."""
    op, pairs = call.op, call.kind in ("all_reduce", "reduce")
    for tensor in tensors:
        kind = tensor.dtype
        if pairs and tensor.is_complex():
            if op not in _COMPLEX_OPS:
                _no_complex(call)
        elif kind in _NO_SUMS and call.kind != "reduce":
            raise RuntimeError("Unsupported Float8 type for NCCL reduction")
        else:
            _type_for_nccl(tensor)
        if op != "SUM":
            _reduction_of_nccl(op, tensor)


def _no_complex(call: Call) -> NoReturn:
    # C++ writes the operation as the letter of its number.
    letter = chr(int(getattr(ReduceOp.RedOpType, call.op)))
    raise RuntimeError(f"{call.kind} does not support{letter}on complex tensors")


def _same_gpu(call: Call, tensors: Sequence[Tensor]) -> None:
    for tensor in tensors:
        gpu = gpu_of(tensor)
        if gpu is None:
            raise ValueError("Tensors must be CUDA and dense")
        if str(gpu.device) != call.device:
            raise ValueError("Expected list of tensors on the same device")


def _root(call: Call, name: str) -> None:
    if call.root is None or not 0 <= call.root < len(call.ranks):
        # NCCL: src/misc/argcheck.cc, ArgsCheck
        raise nccl_error(
            "invalid argument",
            f"{name} : invalid root {call.root} (root should be in the 0..{len(call.ranks)} range)",
        )


def _all_reduce(call: Call) -> None:
    tensors = call.inputs
    if tensors[0].layout is not torch.strided:
        raise RuntimeError(
            "NCCL does not support all_reduce with sparse tensors. Please use dense tensors instead."
        )
    if len(tensors) == 1:
        _dense(tensors[0])
    else:
        _coalesced(call, tensors)
    _summed(call, tensors)


def _coalesced(call: Call, tensors: Sequence[Tensor]) -> None:
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
    _same_gpu(call, tensors)


def _broadcast(call: Call) -> None:
    for tensor in call.outputs or call.inputs:
        _dense(tensor)
        if not tensor.is_complex():
            _type_for_nccl(tensor)
    _root(call, "Broadcast")


def _reduce(call: Call) -> None:
    _dense(call.inputs[0])
    _summed(call, call.inputs)
    _root(call, "Reduce")


def _all_gather(call: Call) -> None:
    mine, outputs = call.inputs[0], call.outputs
    _dense(mine)
    _type_for_nccl(mine)
    _as_many(call, outputs)
    _same_gpu(call, outputs)
    _one_type(call, mine, outputs)
    if all(output.shape == outputs[0].shape for output in outputs):
        if outputs[0].numel() != mine.numel():
            _silent(
                en=f"all_gather: each output has shape {_shape(outputs[0])}, the input {_shape(mine)}",
                zh=f"all_gather：每个输出的形状是 {_shape(outputs[0])}，而输入的形状是 {_shape(mine)}",
            )
    elif outputs[call.at].numel() != mine.numel():
        raise ValueError("Tensor input and output of _broadcast_oop must have the same number of elements ")


def _all_gather_single(call: Call) -> None:
    for tensor, output in zip(call.inputs, call.outputs, strict=True):
        _dense(tensor)
        _dense(output)
        if tensor.dtype != output.dtype:
            raise TypeError("output tensor must have the same type as input tensor")
        if tensor.numel() * len(call.ranks) != output.numel():
            raise ValueError("output tensor size must be equal to world_size times input tensor size")
        _type_for_nccl(tensor)
        _same_gpu(call, (tensor, output))


def _reduce_scatter(call: Call) -> None:
    output, pieces = call.outputs[0], call.inputs
    _dense(output)
    _as_many(call, pieces)
    _same_gpu(call, pieces)
    _summed(call, [*pieces, output])
    _one_type(call, output, pieces)
    if pieces[call.at].numel() != output.numel():
        if all(piece.shape == pieces[0].shape for piece in pieces):
            _silent(
                en=f"reduce_scatter: each input has shape {_shape(pieces[0])}, the output {_shape(output)}",
                zh=f"reduce_scatter：每个输入的形状是 {_shape(pieces[0])}，而输出的形状是 {_shape(output)}",
            )
        raise ValueError("Tensor input and output of _reduce_oop must have the same number of elements ")


def _reduce_scatter_single(call: Call) -> None:
    for tensor, output in zip(call.inputs, call.outputs, strict=True):
        if tensor.dtype != output.dtype:
            raise TypeError("input tensor must be the same type as the output tensor.")
        if tensor.numel() != output.numel() * len(call.ranks):
            raise ValueError("input tensor must be the same size as output size times world size")
        _summed(call, (output,))
        _same_gpu(call, (tensor, output))


def _all_to_all_single(call: Call) -> None:
    tensor, output = call.inputs[0], call.outputs[0]
    _dense(output)
    _dense(tensor)
    _type_for_nccl(tensor)
    _one_type(call, tensor, (output,))
    _same_gpu(call, (tensor, output))
    _splits(call, tensor, output)


def _splits(call: Call, tensor: Tensor, output: Tensor) -> None:
    """Utils.hpp, checkSplitSizes."""
    given = call.splits or (None, None)
    for one, sizes in zip((tensor, output), given, strict=True):
        rows = one.size(0) if one.dim() else 1
        if not sizes:
            if rows % len(call.ranks):
                raise RuntimeError("Tensor's dim 0 does not divide equally across group size")
        elif len(sizes) != len(call.ranks):
            raise RuntimeError("Number of tensor splits not equal to group size")
        elif sum(sizes) != rows:
            raise RuntimeError("Split sizes doesn't match total dim 0 size")
    if not any(given) and tensor.numel() != output.numel():
        _silent(
            en=f"all_to_all_single: the input has shape {_shape(tensor)}, the output {_shape(output)}; without split "
            "sizes they have equally many elements",
            zh=f"all_to_all_single：输入的形状是 {_shape(tensor)}，输出的形状是 {_shape(output)}；"
            "不给 split sizes 时，两者的元素个数必须相同",
        )


def _all_to_all(call: Call) -> None:
    _as_many(call, call.inputs)
    _as_many(call, call.outputs)
    for output, tensor in zip(call.outputs, call.inputs, strict=True):
        _dense(output)
        _dense(tensor)
        if not str(gpu_of(output)) == str(gpu_of(tensor)) or str(_device(tensor)) != call.device:
            raise RuntimeError("Tensors must be on the same device")
        _type_for_nccl(tensor)
    _one_type(call, call.inputs[0], [*call.inputs, *call.outputs])


def _gather(call: Call) -> None:
    _root_rank(call, "ProcessGroupNCCL")
    _dense(call.inputs[0])
    if call.at == call.root:
        _listed(call, "ProcessGroupNCCL", call.outputs, call.inputs[0])
        _same_gpu(call, call.outputs)
    _type_for_nccl(call.inputs[0])


def _scatter(call: Call) -> None:
    _root_rank(call, "ProcessGroupNCCL")
    if call.at == call.root:
        _listed(call, "ProcessGroupNCCL", call.inputs, call.outputs[0])
    _same_gpu(call, [*call.inputs, *call.outputs])
    _type_for_nccl(call.outputs[0])


def _message(call: Call) -> None:
    tensor = (call.inputs or call.outputs)[0]
    _dense(tensor, contiguous=False)
    _type_for_nccl(tensor)
    if call.root is None:
        raise NotImplementedError("ProcessGroupNCCL does not support recvAnysource")
    _root(call, call.kind.capitalize())


_NCCL: dict[str, Callable[[Call], None]] = {
    "all_reduce": _all_reduce,
    "broadcast": _broadcast,
    "reduce": _reduce,
    "all_gather": _all_gather,
    "all_gather_single": _all_gather_single,
    "gather": _gather,
    "scatter": _scatter,
    "reduce_scatter": _reduce_scatter,
    "reduce_scatter_single": _reduce_scatter_single,
    "all_to_all": _all_to_all,
    "all_to_all_single": _all_to_all_single,
    "send": _message,
    "recv": _message,
}


# Both.


def _root_rank(call: Call, group: str) -> None:
    """Utils.hpp, assertRootRank."""
    if call.root is None or not 0 <= call.root < len(call.ranks):
        _refuse(call, group, f"invalid root rank: {call.root}")


# The names of collectives in C++'s own complaints.
_CPP = {
    "all_reduce": "allreduce", "all_gather": "allgather", "all_gather_single": "allgather",
    "reduce_scatter": "reduce_scatter", "all_to_all": "alltoall", "all_to_all_single": "alltoall_base",
}  # fmt: skip


def _refuse(call: Call, group: str, text: str) -> NoReturn:
    kind = ValueError if group == "ProcessGroupNCCL" else RuntimeError
    raise kind(f"{group}::{_CPP.get(call.kind, call.kind)}: {text}")


def _listed(call: Call, group: str, tensors: Sequence[Tensor], like: Tensor) -> None:
    """A list with a tensor for each rank, each like the one that is sent or received."""
    if len(tensors) != len(call.ranks):
        side = "output" if call.kind == "gather" else "input"
        _refuse(
            call,
            group,
            f"Incorrect {side} list size {len(tensors)}. {side.capitalize()} list size should be "
            f"{len(call.ranks)}, same as size of the process group.",
        )
    _alike(call, group, tensors, like)


def _alike(call: Call, group: str, tensors: Sequence[Tensor], like: Tensor) -> None:
    """Utils.hpp, assertTypeAndSizesMatch."""
    for index, tensor in enumerate(tensors):
        if tensor.dtype != like.dtype or _device(tensor) != _device(like):
            _refuse(
                call,
                group,
                f"invalid tensor type at index {index} (expected {_options(like)}, got {_options(tensor)})",
            )
        if tensor.shape != like.shape:
            _refuse(
                call,
                group,
                f"invalid tensor size at index {index} (expected {_sizes(like)}, got {_sizes(tensor)})",
            )


def _device(tensor: Tensor) -> str:
    gpu = gpu_of(tensor)
    return str(tensor.device) if gpu is None else str(gpu.device)


_CTYPES = {
    torch.float32: "float", torch.float64: "double", torch.float16: "c10::Half", torch.bfloat16: "c10::BFloat16",
    torch.int64: "long int", torch.int32: "int", torch.int16: "short int", torch.int8: "signed char",
    torch.uint8: "unsigned char", torch.bool: "bool",
}  # fmt: skip


def _options(tensor: Tensor) -> str:
    """c10/core/TensorOptions.cpp, operator<<."""
    kind = _CTYPES.get(tensor.dtype, str(tensor.dtype).removeprefix("torch."))
    return (
        f"TensorOptions(dtype={kind}, device={_device(tensor)}, layout=Strided, requires_grad=false (default), "
        "pinned_memory=false (default), memory_format=(nullopt))"
    )


def _sizes(tensor: Tensor) -> str:
    return f"({', '.join(map(str, tensor.shape))})"


def _shape(tensor: Tensor) -> list[int]:
    return list(tensor.shape)


def _as_many(call: Call, tensors: Sequence[Tensor]) -> None:
    if len(tensors) != len(call.ranks):
        _silent(
            en=f"{call.kind}: {len(tensors)} tensors for the {len(call.ranks)} ranks of the group: one for each is "
            "needed",
            zh=f"{call.kind}：组里有 {len(call.ranks)} 个 rank，却给了 {len(tensors)} 个张量：每个 rank 要有一个",
        )


def _one_type(call: Call, like: Tensor, tensors: Sequence[Tensor]) -> None:
    for tensor in tensors:
        if tensor.dtype != like.dtype:
            names = [str(one.dtype).removeprefix("torch.") for one in (like, tensor)]
            _silent(
                en=f"{call.kind}: {names[0]} and {names[1]} in one call",
                zh=f"{call.kind}：同一次调用里既有 {names[0]} 又有 {names[1]}",
            )


def _silent(*, en: str, zh: str) -> NoReturn:
    """What NCCL does not look at."""
    raise ValueError(
        say(
            en=f"{en} (NCCL does not check this: on real GPUs it reads or writes the wrong memory)",
            zh=f"{zh}（NCCL 不检查这一点：在真实的 GPU 上会读写错误的显存）",
        )
    )


# gloo.

# ProcessGroupGlooDetail.hpp, GENERATE_ALL_TYPES
_GLOO_TYPES = frozenset(
    (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.bool, torch.int32,
     torch.int64)
)  # fmt: skip
_INTEGRAL = frozenset((torch.int8, torch.uint8, torch.bool, torch.int32, torch.int64))


def _type_for_gloo(tensor: Tensor, pairs: bool = False) -> None:
    if tensor.dtype not in _GLOO_TYPES and not (pairs and tensor.is_complex()):
        raise RuntimeError("Invalid scalar type")


def _dense_for_gloo(call: Call, tensors: Sequence[Tensor]) -> None:
    for tensor in tensors:
        if tensor.layout is not torch.strided:
            _refuse(call, "ProcessGroupGloo", "only supports dense tensors")


def _reduction_of_gloo(call: Call, tensor: Tensor) -> None:
    op = call.op
    if op == "PREMUL_SUM":
        raise RuntimeError("Cannot use ReduceOp.PREMUL_SUM with Gloo")
    if tensor.is_complex() and op not in _COMPLEX_OPS:
        _no_complex(call)
    _type_for_gloo(tensor, pairs=call.kind in ("all_reduce", "reduce"))
    if op in ("BAND", "BOR", "BXOR") and tensor.dtype not in _INTEGRAL:
        raise RuntimeError(f"Cannot use ReduceOp.{op} with non-integral dtype")


def _gloo_all_reduce(call: Call) -> None:
    if not call.inputs:
        _refuse(call, "ProcessGroupGloo", "requires non-empty tensor list")
    for tensor in call.inputs:
        if tensor.layout is not torch.strided:
            if call.op != "SUM":
                _refuse(
                    call,
                    "ProcessGroupGloo",
                    "unsupported reduction operation (allreduce of sparse tensors only works with ReduceOp.SUM)",
                )
            continue
        _reduction_of_gloo(call, tensor)


def _gloo_broadcast(call: Call) -> None:
    _root_rank(call, "ProcessGroupGloo")
    tensors = call.outputs or call.inputs
    _dense_for_gloo(call, tensors)
    for tensor in tensors:
        _type_for_gloo(tensor, pairs=True)


def _gloo_reduce(call: Call) -> None:
    _root_rank(call, "ProcessGroupGloo")
    _dense_for_gloo(call, call.inputs)
    _reduction_of_gloo(call, call.inputs[0])


def _gloo_all_gather(call: Call) -> None:
    mine = call.inputs[0]
    _dense_for_gloo(call, call.inputs)
    if len(call.outputs) != len(call.ranks):
        _refuse(
            call,
            "ProcessGroupGloo",
            f"invalid output tensor list at index 0 (expected length {len(call.ranks)}, got {len(call.outputs)})",
        )
    _alike(call, "ProcessGroupGloo", call.outputs, mine)
    _type_for_gloo(mine)


def _gloo_all_gather_single(call: Call) -> None:
    for tensor, output in zip(call.inputs, call.outputs, strict=True):
        _dense_for_gloo(call, (tensor, output))
        members = len(call.ranks)
        if output.numel() != tensor.numel() * members:
            # It looks at the output as a list of pieces (_allgather_base), whose sizes then do not fit.
            each = output.numel() // members
            _refuse(
                call,
                "ProcessGroupGloo",
                f"invalid tensor size at index 0 (expected {_sizes(tensor)}, got ({each}))",
            )
        if output.dtype != tensor.dtype:
            _alike(call, "ProcessGroupGloo", (output,), tensor)
        _type_for_gloo(tensor)


def _gloo_gather(call: Call) -> None:
    _root_rank(call, "ProcessGroupGloo")
    _dense_for_gloo(call, call.inputs)
    if call.at == call.root:
        _listed(call, "ProcessGroupGloo", call.outputs, call.inputs[0])
    _type_for_gloo(call.inputs[0])


def _gloo_scatter(call: Call) -> None:
    _root_rank(call, "ProcessGroupGloo")
    _dense_for_gloo(call, call.outputs)
    if call.at == call.root:
        _listed(call, "ProcessGroupGloo", call.inputs, call.outputs[0])
    _type_for_gloo(call.outputs[0])


def _gloo_reduce_scatter(call: Call) -> None:
    if len(call.inputs) != len(call.ranks):
        raise RuntimeError("invalid input tensor list size, must be world size")
    for tensor in call.inputs:
        _failed("outputs[0].dtype() == inputs[0][i].dtype()", call.outputs[0].dtype, tensor.dtype)
    _reduction_of_gloo(call, call.outputs[0])


def _gloo_reduce_scatter_single(call: Call) -> None:
    for tensor, output in zip(call.inputs, call.outputs, strict=True):
        _failed("outputTensors[i].dtype() == inputTensors[i].dtype()", output.dtype, tensor.dtype)
        rows = (output.size(0) if output.dim() else 1) * len(call.ranks)
        if tensor.numel() != output.numel() * len(call.ranks):
            given = tensor.size(0) if tensor.dim() else 1
            raise RuntimeError(
                f"Check failed: outputShape[0] * worldSize == inputShape[0] ({rows} vs. {given}). "
            )
        _reduction_of_gloo(call, output)


def _failed(text: str, left: Any, right: Any) -> None:
    """c10/util/logging_is_not_google_glog.h, CHECK_EQ."""
    if left != right:
        names = _CTYPES.get(left, left), _CTYPES.get(right, right)
        raise RuntimeError(f"Check failed: {text} ({names[0]} vs. {names[1]}). ")


def _gloo_all_to_all_single(call: Call) -> None:
    tensor, output = call.inputs[0], call.outputs[0]
    if not _is_contiguous(tensor):
        raise ValueError("Tensors must be contiguous")
    _type_for_gloo(tensor)
    _one_type(call, tensor, (output,))
    _splits(call, tensor, output)


def _gloo_all_to_all(call: Call) -> None:
    for tensors, side in ((call.inputs, "input"), (call.outputs, "output")):
        if len(tensors) != len(call.ranks):
            raise RuntimeError(
                f"{side} tensor list size {len(tensors)} does not match world size {len(call.ranks)}"
            )
    for tensor in (*call.inputs, *call.outputs):
        _type_for_gloo(tensor)
    _one_type(call, call.inputs[0], [*call.inputs, *call.outputs])


def _gloo_message(call: Call) -> None:
    tensors = call.inputs or call.outputs
    if len(tensors) != 1:
        raise RuntimeError("ProcessGroupGloo::send takes a single tensor")
    if tensors[0].layout is not torch.strided or not tensors[0].is_contiguous():
        raise RuntimeError("input tensor has to be contiguous")
    if call.tag < 0:
        raise RuntimeError("Tag must be nonnegative")


_GLOO: dict[str, Callable[[Call], None]] = {
    "all_reduce": _gloo_all_reduce,
    "broadcast": _gloo_broadcast,
    "reduce": _gloo_reduce,
    "all_gather": _gloo_all_gather,
    "all_gather_single": _gloo_all_gather_single,
    "gather": _gloo_gather,
    "scatter": _gloo_scatter,
    "reduce_scatter": _gloo_reduce_scatter,
    "reduce_scatter_single": _gloo_reduce_scatter_single,
    "all_to_all": _gloo_all_to_all,
    "all_to_all_single": _gloo_all_to_all_single,
    "send": _gloo_message,
    "recv": _gloo_message,
}
