"""Errors of the CUDA runtime in the words of PyTorch's releases, and the base class of the machine's own errors."""

from __future__ import annotations

import os
from typing import Any

import torch


def cuda_error(number: int, name: str, words: str) -> torch.AcceleratorError:
    """Return error ``number`` of the runtime, ``cudaError`` + ``name``, with the message ``words``.

    The text is built as in c10/cuda (CUDAException.cpp, CUDAMiscFunctions.cpp, CUDADeviceAssertionHost.cpp), without
    TORCH_USE_CUDA_DSA, which no release has.
    """
    lines = [f"CUDA error: {words}"]
    if name == "InvalidDevice":
        lines.append("GPU device may be out of range, do you have enough GPUs?")
    else:
        lines.append(
            f"Search for `cudaError{name}' in "
            "https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html for more information."
        )
    if os.environ.get("CUDA_LAUNCH_BLOCKING") != "1":
        lines.append(
            "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below "
            "might be incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1"
        )
    lines.append("Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n")
    error: Any = torch.AcceleratorError("\n".join(lines))
    error.error_code = number
    return error  # type: ignore[no-any-return]


class NotSimulated(Exception):
    """Error for what a real GPU may do and the machine does not. The check-up tells it from a model's own errors."""
