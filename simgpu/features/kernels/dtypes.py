"""The dtypes that CUDA's kernels take and the CPU's do not, and the other way round.

The table stands in ``dtypes.txt``. It has facts of PyTorch's sources: the names and dtypes of the ``AT_DISPATCH``
macros in ``aten/src/ATen/native/cuda`` and ``native/cpu`` (2.12, 2.13). PyTorch's operator database says the same for
each function (``dtypes`` against ``dtypesIfCUDA``); it is slow to import and wants more packages, so it is a test that
asks it: ``python -m pytest tests/machine/test_kernels.py`` says where these tables differ from it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from labkit.base.files import rows_beside

from ...handlers import functions_named

# The names that c10::toString gives them (c10/core/ScalarType.h).
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
    """The rows of this kind in ``dtypes.txt``: the words in the third column, the names in the last, the dtypes."""
    for what, dtypes, words, names in rows_beside(__file__):
        if what == kind:
            group = _GROUPS.get(dtypes) or frozenset(getattr(torch, each) for each in dtypes.split())
            yield words, names.split(), group


# CUDA refuses these and the CPU computes them: the ATen operator -> the kernel that refuses, the dtypes. Blas.cpp,
# AveragePool*.cu, DilatedMaxPool*.cu, UpSampleBi*.cu, IGammaKernel.cu, ReduceNormKernel.cu, Dropout.cu,
# UnaryComplexKernels.cu, SummaryOps.cu, ScatterGatherKernel.cu, sparse/cuda/SparseMatMul.cu.
REFUSED = {name: (kernel, dtypes) for kernel, names, dtypes in _rows("refused") for name in names}
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
FUNCTIONS = [(" ".join(names), dtypes) for _, names, dtypes in _rows("asked")]
# The CPU's kernels refuse these and CUDA's compute them: the name in the CPU's refusal -> the dtypes. They are in the
# AT_DISPATCH macros under native/cpu. The sentences are those of SpectralOps.cpp and ReduceOps.cpp.
COMPUTED = {kernel: dtypes for _, kernels, dtypes in _rows("computed") for kernel in kernels}
SENTENCES = {sentence: dtypes for sentence, _, dtypes in _rows("sentence")}
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


def is_cpu_refusal(words: str) -> bool:
    """Whether these are words in which a kernel refuses a dtype, and the kernel is none of CUDA's."""
    found = _REFUSAL.match(words)
    return found is not None and found[1] not in _CUDAS


def refusing() -> Iterator[tuple[Any, frozenset[torch.dtype]]]:
    """The functions that CUDA refuses some dtypes of, each with these."""
    for names, dtypes in FUNCTIONS:
        for function in functions_named(names):
            yield function, dtypes
    for operator, (_, dtypes) in REFUSED.items():
        for packet in functions_named(f"ops.aten.{operator}"):
            yield packet, dtypes
            for overload in packet.overloads():
                yield getattr(packet, overload), dtypes
