"""Assertions of CUDA's kernels on the device, where the CPU's raise an error of their own.

The words are the CPU's (``aten/src/ATen/native``), each beside the ``CUDA_KERNEL_ASSERT`` of the same operator under
``native/cuda``. What both check on the host, such as an index that is a number of Python's, is not here.
"""

from __future__ import annotations

import re
from typing import Any

import torch

from ....base.language import say
from ...state.cuda_errors import cuda_error

# The CPU's kernels say this of a value that is not allowed, where CUDA's assert (IndexKernel.cu, Indexing.cu,
# ScatterGatherKernel.cu, EmbeddingBag.cu, Loss.cu, NLLLoss2d.cu, Multi*Margin*.cu, MaxUnpooling.cu, Distribution*.cu,
# TensorCompare.cu, Repeat.cu). What the CPU says of shapes and dtypes, CUDA's host code says too.
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


def of_a_value(words: str) -> bool:
    """Whether the CPU's kernel refused a value in these ``words``, which CUDA's asserts."""
    return _OF_A_VALUE.match(words) is not None


def device_assert(operator: str, device: torch.device, words: str) -> torch.AcceleratorError:
    """CUDA's error for a failed assertion on the device, with a note on what failed (the CPU's ``words``)."""
    error: Any = cuda_error(_ASSERT, "Assert", "device-side assert triggered")
    words = words.partition("\n")[0].partition("  (Could this")[0].rstrip(".")
    error.add_note(
        say(
            en=f"labkit: it was {operator} on {device}: {words}. A real GPU tells this later, at the next call that "
            "waits for it, and every CUDA call of the process fails from then on; here it is told at once, and the "
            "machine goes on.",
            zh=f"labkit：出错的是 {device} 上的 {operator}：{words}。真实 GPU 要到下一次等待它的调用时才报告，"
            "此后这个进程里所有的 CUDA 调用都会失败；这里立刻报告，机器可以继续使用。",
        )
    )
    return error
