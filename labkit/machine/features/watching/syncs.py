"""``torch.cuda.set_sync_debug_mode``: who is told when the host waits for a GPU."""

from __future__ import annotations

import sys
import warnings

from ....base import ours

# torch's Python between the machine and what called it.
_BETWEEN = ours.torch_files(
    "_compile.py", "_dynamo/eval_frame.py", "_ops.py", "overrides.py", "utils/_python_dispatch.py"
)


class Syncs:
    """What one machine does about calls that wait: 0 nothing, 1 a warning, 2 an error.

    ``c10/cuda/CUDAFunctions.cpp``, ``warn_or_error_on_sync``.
    """

    __slots__ = ("level",)

    def __init__(self) -> None:
        self.level = 0

    def tell(self) -> None:
        """This call waits for a GPU."""
        if self.level == 2:
            raise RuntimeError("called a synchronizing CUDA operation")
        if self.level == 1:
            warn("called a synchronizing CUDA operation")


def warn(text: str) -> None:
    """Warn as C++ does: at the line of Python's that called it, which is none of the machine's."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and _is_between(frame.f_code.co_filename):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, stacklevel=level)


def _is_between(path: str) -> bool:
    return ours.is_our_file(path) or path in _BETWEEN
