"""The errors of the CUDA runtime, in the words of PyTorch as it is released; and the base of the machine's own."""

from __future__ import annotations

import os
from typing import Any

import torch


def cuda_error(number: int, name: str, words: str) -> torch.AcceleratorError:
    """The error ``number`` of the runtime (``cudaError`` + ``name``), which says ``words`` of it.

    The text is put together as in c10/cuda: CUDAException.cpp, CUDAMiscFunctions.cpp, and CUDADeviceAssertionHost.cpp
    without TORCH_USE_CUDA_DSA, which no released build has.
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
    """A real GPU may well do this. By this class the check-up tells such an error from one of the model's."""
