"""Dtypes that only CUDA's kernels take, or only the CPU's.

``dtypes.txt`` has the names and dtypes of the ``AT_DISPATCH`` macros in PyTorch's ``aten/src/ATen/native/cuda`` and
``native/cpu`` (2.12, 2.13). ``tests/machine/test_kernels.py`` compares it with PyTorch's operator database (``dtypes``
and ``dtypesIfCUDA``), which is slow to import and needs more packages.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from labkit.base.files import rows_beside

from ...handlers import functions_named

# C++'s names of dtypes (c10/core/ScalarType.h, toString).
NAMES = {
    torch.uint8: "Byte", torch.int8: "Char", torch.int16: "Short", torch.int32: "Int", torch.int64: "Long",
    torch.float16: "Half", torch.bfloat16: "BFloat16", torch.float32: "Float", torch.float64: "Double",
    torch.complex32: "ComplexHalf", torch.complex64: "ComplexFloat", torch.complex128: "ComplexDouble",
    torch.bool: "Bool",
}  # fmt: skip
DTYPES = {name: dtype for dtype, name in NAMES.items()}
_GROUPS = {
    "integers": frozenset((torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool)),
    "halves": frozenset((torch.float16, torch.bfloat16)),
    "all": frozenset(NAMES),
}


def _rows(kind: str) -> Iterator[tuple[str, list[str], frozenset[torch.dtype]]]:
    """Yield (words, names, dtypes) for each row of this kind in ``dtypes.txt``."""
    for what, dtypes, words, names in rows_beside(__file__):
        if what == kind:
            group = _GROUPS.get(dtypes) or frozenset(getattr(torch, each) for each in dtypes.split())
            yield words, names.split(), group


# ATen operator -> the kernel of CUDA that refuses, and the dtypes, which the CPU computes. From Blas.cpp,
# AveragePool*.cu, DilatedMaxPool*.cu, UpSampleBi*.cu, IGammaKernel.cu, ReduceNormKernel.cu, Dropout.cu,
# UnaryComplexKernels.cu, SummaryOps.cu, ScatterGatherKernel.cu, sparse/cuda/SparseMatMul.cu.
REFUSED = {name: (kernel, dtypes) for kernel, names, dtypes in _rows("refused") for name in names}
_CUDAS = {kernel for kernel, _ in REFUSED.values()} | {"spmm"}
# Messages that differ from the macro's (cudnn/Types.cpp, SummaryOps.cu).
_WORDS = {
    ("convolution", torch.int64): "getCudnnDataTypeFromScalarType() not supported for Long",
    ("histc", torch.float16): "HalfTensor is not supported",
}

# Operators without any kernel for CUDA (native_functions.yaml: a CPU kernel, no CUDA one, nothing composite).
NO_KERNEL = frozenset(
    "histogram _histogramdd_bin_edges _histogramdd_from_bin_cts _histogramdd_from_bin_tensors _spdiags "
    "to_mkldnn".split()
)

# Functions of torch calling these operators, with the dtypes of the first tensor.
FUNCTIONS = [(" ".join(names), dtypes) for _, names, dtypes in _rows("asked")]
# Names in the CPU's refusals of halves, which CUDA computes. From the AT_DISPATCH macros under native/cpu.
COMPUTED = frozenset(kernel for _, kernels, _ in _rows("computed") for kernel in kernels)
_REFUSAL = re.compile(r"\"(\w+)\" not implemented for '(\w+)'")


def refusal(operator: str, tensor: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Exception | None:
    """Return CUDA's error for the ATen ``operator`` ("mm") on ``tensor``; None where CUDA computes."""
    kernel, dtypes = REFUSED.get(operator, ("", frozenset[torch.dtype]()))
    dtype = tensor.dtype
    if dtype not in dtypes or (operator == "scatter_reduce" and args[4] == "sum"):
        return None  # CUDA has the sum of bools
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


def lacking(words: str) -> torch.dtype | None:
    """Return the half dtype in the CPU's refusal ``words``, if CUDA computes the call; else None."""
    found = _REFUSAL.match(words)
    dtype = DTYPES.get(found[2]) if found is not None and found[1] in COMPUTED else None
    return dtype if dtype in _GROUPS["halves"] else None


def is_cpu_refusal(words: str) -> bool:
    """Whether ``words`` refuse a dtype, and name a kernel that CUDA lacks."""
    found = _REFUSAL.match(words)
    return found is not None and found[1] not in _CUDAS


def refusing() -> Iterator[tuple[Any, frozenset[torch.dtype]]]:
    """Yield the functions for which CUDA refuses some dtypes, with these dtypes."""
    for names, dtypes in FUNCTIONS:
        for function in functions_named(names):
            yield function, dtypes
    for operator, (_, dtypes) in REFUSED.items():
        for packet in functions_named(f"ops.aten.{operator}"):
            yield packet, dtypes
            for overload in packet.overloads():
                yield getattr(packet, overload), dtypes
