"""The dtypes that CUDA's kernels take and the CPU's do not, and the other way round.

Facts of PyTorch's sources: the names and dtypes of the ``AT_DISPATCH`` macros in ``aten/src/ATen/native/cuda`` and
``native/cpu`` (2.12, 2.13). PyTorch's operator database says the same for each function (``dtypes`` against
``dtypesIfCUDA``); it is slow to import and wants more packages, so it is a test that asks it:
``python -m pytest tests/machine/test_kernels.py`` says where these tables differ from it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ...handlers import named

# The names that c10::toString gives them (c10/core/ScalarType.h).
NAMES = {
    torch.uint8: "Byte", torch.int8: "Char", torch.int16: "Short", torch.int32: "Int", torch.int64: "Long",
    torch.float16: "Half", torch.bfloat16: "BFloat16", torch.float32: "Float", torch.float64: "Double",
    torch.complex32: "ComplexHalf", torch.complex64: "ComplexFloat", torch.complex128: "ComplexDouble",
    torch.bool: "Bool",
}  # fmt: skip
DTYPES = {name: dtype for dtype, name in NAMES.items()}
_INTEGERS = frozenset((torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool))
_LONG, _BYTE = frozenset((torch.int64,)), frozenset((torch.uint8,))
_HALVES = frozenset((torch.float16, torch.bfloat16))
_NO_PRODUCT = frozenset(
    (torch.bool, torch.complex32, torch.complex64, torch.complex128)
)  # of scattered values


# CUDA refuses these and the CPU computes them: the ATen operator -> the kernel that refuses, the dtypes. Blas.cpp,
# AveragePool*.cu, DilatedMaxPool*.cu, UpSampleBi*.cu, IGammaKernel.cu, ReduceNormKernel.cu, Dropout.cu,
# UnaryComplexKernels.cu, SummaryOps.cu, ScatterGatherKernel.cu, sparse/cuda/SparseMatMul.cu.
REFUSED: dict[str, tuple[str, frozenset[torch.dtype]]] = {
    **dict.fromkeys(("mm", "addmm", "addbmm"), ("addmm_cuda", _INTEGERS)),
    **dict.fromkeys(("mv", "addmv"), ("addmv_impl_cuda", _INTEGERS)),
    **dict.fromkeys(("bmm", "baddbmm", "_trilinear"), ("baddbmm_cuda", _INTEGERS)),
    **dict.fromkeys(("dot", "vdot"), ("dot", _INTEGERS)),
    "avg_pool2d": ("avg_pool2d_out_cuda_frame", _LONG),
    "avg_pool3d": ("avg_pool3d_out_cuda", _LONG),
    "max_pool2d_with_indices": ("max_pool2d_with_indices_out_cuda_frame", _INTEGERS),
    "max_pool3d_with_indices": ("max_pool3d_with_indices_out_frame", _INTEGERS),
    "upsample_bilinear2d": ("upsample_bilinear2d_out_frame", _BYTE),
    "_upsample_bilinear2d_aa": ("upsample_bilinear2d_out_frame", _BYTE),
    "upsample_bicubic2d": ("upsample_bicubic2d_out_frame", _BYTE),
    "_upsample_bicubic2d_aa": ("upsample_bicubic2d_out_frame", _BYTE),
    "igamma": ("igamma_cuda", _HALVES),
    "igammac": ("igammac_cuda", _HALVES),
    "angle": ("angle_cuda", _HALVES),
    "histc": ("histc", _HALVES),
    "linalg_vector_norm": ("norm_cuda", frozenset((torch.complex32,))),
    "native_dropout_backward": ("masked_scale", _INTEGERS),
    "scatter_reduce": ("cuda_scatter_gather_base_kernel_func", frozenset((torch.bool,))),
    "scatter": ("cuda_scatter_gather_base_kernel_func", _NO_PRODUCT),
    "_sparse_sparse_matmul": ("sparse_matmul", _INTEGERS),
    "convolution": ("", _LONG),
}
_CUDAS = {kernel for kernel, _ in REFUSED.values()} | {"spmm"}
# Kernels that refuse in other words than the macro's: cudnn/Types.cpp, SummaryOps.cu.
_WORDS = {
    ("convolution", torch.int64): "getCudnnDataTypeFromScalarType() not supported for Long",
    ("histc", torch.float16): "HalfTensor is not supported",
}

# Operators that CUDA has no kernel for at all (native_functions.yaml: a CPU kernel, no CUDA one, nothing composite).
NO_KERNEL = frozenset(
    "histogram _histogramdd_bin_edges _histogramdd_from_bin_cts _histogramdd_from_bin_tensors _spdiags "
    "to_mkldnn".split()
)

# The functions of torch that may come to these operators, with the dtypes of the first tensor for which they do.
_MATRICES = (
    "mm spmm addmm addbmm baddbmm bmm mv addmv dot vdot matmul linalg.matmul linalg.multi_dot linalg.matrix_power "
    "matrix_power chain_matmul inner tensordot einsum conv_tbc _addmm_activation sparse.mm sparse.addmm hspmm smm "
    "Tensor.mm Tensor.addmm Tensor.addmm_ Tensor.addbmm Tensor.addbmm_ Tensor.baddbmm Tensor.baddbmm_ Tensor.bmm "
    "Tensor.mv Tensor.addmv Tensor.addmv_ Tensor.dot Tensor.vdot Tensor.matmul Tensor.__matmul__ Tensor.__rmatmul__ "
    "Tensor.inner Tensor.matrix_power nn.functional.linear nn.functional.bilinear"
)
FUNCTIONS = (
    (_MATRICES, _INTEGERS),
    (
        "nn.functional.max_pool2d nn.functional.max_pool2d_with_indices nn.functional.max_pool3d "
        "nn.functional.max_pool3d_with_indices max_pool2d max_pool3d",
        _INTEGERS,
    ),
    (
        "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d convolution "
        "nn.functional.avg_pool1d nn.functional.avg_pool2d nn.functional.avg_pool3d "
        "nn.functional.lp_pool1d nn.functional.lp_pool2d nn.functional.lp_pool3d nn.functional.local_response_norm",
        _LONG,
    ),
    ("nn.functional.interpolate nn.functional.upsample nn.functional.upsample_bilinear", _BYTE),
    (
        "igamma Tensor.igamma Tensor.igamma_ igammac Tensor.igammac Tensor.igammac_ special.gammainc "
        "special.gammaincc angle Tensor.angle histc Tensor.histc",
        _HALVES,
    ),
    (
        "norm Tensor.norm linalg.vector_norm linalg.norm linalg.matrix_norm",
        frozenset((torch.complex32,)),
    ),
    ("scatter_reduce Tensor.scatter_reduce Tensor.scatter_reduce_", frozenset((torch.bool,))),
    ("scatter Tensor.scatter Tensor.scatter_", _NO_PRODUCT),
    ("histogram Tensor.histogram histogramdd sparse.spdiags Tensor.to_mkldnn", frozenset(NAMES)),
)

# The CPU's kernels refuse these and CUDA's compute them: the name in the CPU's refusal -> the dtypes. They are in the
# AT_DISPATCH macros under native/cpu. The sentences are those of SpectralOps.cpp and ReduceOps.cpp.
_COMPLEX_HALF = (
    "acos_vml_cpu acosh_cpu asin_vml_cpu asinh_cpu atan_vml_cpu atanh_cpu cos_vml_cpu cosh_cpu div_cpu exp_vml_cpu "
    "log_vml_cpu logaddexp_cpu pow sin_vml_cpu sinh_cpu tan_vml_cpu tanh_vml_cpu rsqrt_cpu sqrt_vml_cpu "
    "lerp_kernel_scalar lerp_kernel_tensor angle_cpu sigmoid_cpu prod_out_cpu sum_cpu"
)
COMPUTED: dict[str, frozenset[torch.dtype]] = {
    **dict.fromkeys(
        "avg_pool3d_out_frame compute_index_ranges_weights multi_margin_loss_cpu_kernel rrelu_with_noise_out_cpu "
        "multilabel_margin_loss_forward_out_frame cadd_sparse add_out_sparse_cpu".split(),
        _HALVES,
    ),
    **dict.fromkeys(_COMPLEX_HALF.split(), frozenset((torch.complex32,))),
    "histogram_cpu": _INTEGERS - {torch.bool},
    "abs_cpu": frozenset((torch.bool,)),
    "trace": frozenset((torch.bool, torch.complex32)),
}
SENTENCES: dict[str, frozenset[torch.dtype]] = {
    "Unsupported dtype Half": frozenset((torch.float16,)),
    "MKL FFT doesn't support tensors of type: Half": frozenset((torch.complex32,)),
    "nansum on CPU does not support complex inputs": frozenset(
        (torch.complex32, torch.complex64, torch.complex128)
    ),
}
_REFUSAL = re.compile(r"\"(\w+)\" not implemented for '(\w+)'")


def refusal(operator: str, tensor: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Exception | None:
    """CUDA's error for the ATen ``operator`` ("mm") with a first tensor like ``tensor``; None where it computes."""
    kernel, dtypes = REFUSED.get(operator, ("", frozenset[torch.dtype]()))
    dtype = tensor.dtype
    if dtype not in dtypes or (operator == "scatter_reduce" and args[4] == "sum"):
        return None  # of truths it knows the sum
    if operator == "scatter":
        if kwargs.get("reduce") != "multiply":
            return None
        if not isinstance(args[3], Tensor):
            kernel = "cuda_scatter_fill_base_kernel_reduce_multiply"
    words = _WORDS.get((operator, dtype))
    if words is not None:
        return RuntimeError(words)
    if tensor.layout != torch.strided and kernel == "addmm_cuda":
        kernel = "spmm"  # sparse/cuda/SparseBlasImpl.cpp
    return NotImplementedError(f"\"{kernel}\" not implemented for '{NAMES[dtype]}'")


def lacking(words: str) -> tuple[str, frozenset[torch.dtype]] | None:
    """The kernel that the CPU lacks, if ``words`` are its refusal of something that CUDA computes, and the dtypes."""
    found = _REFUSAL.match(words)
    if found is not None:
        kernel, dtype = found[1], DTYPES.get(found[2])
        return (kernel, frozenset((dtype,))) if dtype and dtype in COMPUTED.get(kernel, ()) else None
    dtypes = SENTENCES.get(words.partition("\n")[0])
    return None if dtypes is None else (words, dtypes)


def of_the_cpu(words: str) -> bool:
    """Whether these are words in which a kernel refuses a dtype, and the kernel is none of CUDA's."""
    found = _REFUSAL.match(words)
    return found is not None and found[1] not in _CUDAS


def refusing() -> Iterator[tuple[Any, frozenset[torch.dtype]]]:
    """The functions that CUDA refuses some dtypes of, each with these."""
    for names, dtypes in FUNCTIONS:
        for function in named(names):
            yield function, dtypes
    for operator, (_, dtypes) in REFUSED.items():
        for packet in named(f"ops.aten.{operator}"):
            yield packet, dtypes
            for overload in packet.overloads():
                yield getattr(packet, overload), dtypes
