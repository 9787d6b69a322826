"""Whether each rank has initialised CUDA, which a process does when it first uses a GPU.

``init_device_mesh`` chooses a GPU if CUDA is not initialised.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from labkit.base.patches import Patch


class CudaState:
    """The CUDA of a process, initialised once the process has chosen a GPU or allocated memory.

    total   returns the number of bytes that its GPUs have ever allocated, for any process.
    """

    def __init__(self, total: Callable[[], int]) -> None:
        self._total = total
        self._chosen = self._later = False
        self._before = 0

    def begin_turn(self) -> None:
        """Ignore memory that other ranks have allocated so far."""
        if not self._chosen:
            self._before = self._total()

    def is_initialized(self) -> bool:
        if not self._chosen:
            self._chosen = self._total() != self._before
        return self._chosen

    def initialize(self) -> None:
        self._chosen = self._chosen or not self._later

    def later(self, function: Callable[[], object]) -> None:
        """Call ``function`` now, which real GPUs delay until CUDA is initialised: generators exist from the start."""
        before, self._later = self._later, True
        try:
            function()
        finally:
            self._later = before


def patches(cuda_here: Callable[[], CudaState | None]) -> Iterator[Patch]:
    """Yield the patches. ``cuda_here()`` returns the state of the current process or rank; None outside."""

    def is_initialized(real: Callable[[], bool]) -> bool:
        cuda = cuda_here()
        return real() if cuda is None else cuda.is_initialized()

    def lazy_init(real: Callable[[], object]) -> None:
        cuda = cuda_here()
        real() if cuda is None else cuda.initialize()

    def later(real: Callable[..., object], function: Callable[[], object], **options: Any) -> None:
        cuda = cuda_here()
        real(function, **options) if cuda is None else cuda.later(function)

    def set_device(real: Callable[[int], object], index: int) -> object:
        result = real(index)
        if (cuda := cuda_here()) is not None:
            cuda.initialize()
        return result

    for owner in (torch.cuda, torch.cuda.memory, torch.cuda.random):
        yield Patch.wrap(owner, "is_initialized", is_initialized)
        yield Patch.wrap(owner, "_lazy_init", lazy_init)
    for owner in (torch.cuda, torch.cuda.random):
        yield Patch.wrap(owner, "_lazy_call", later)
    for name in ("_cuda_setDevice", "_accelerator_setDeviceIndex"):
        yield Patch.wrap(torch._C, name, set_device)
