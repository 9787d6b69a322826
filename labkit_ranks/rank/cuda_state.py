"""Each rank initialises CUDA for itself when it first uses it, as each process does.

``init_device_mesh`` chooses a GPU for a process that has not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from labkit.base.patches import Patch


class CudaState:
    """One process's CUDA. It is initialised once the process has chosen a GPU or had memory of one.

    total   how many bytes its GPUs have given out up to now, to whomever.
    """

    def __init__(self, total: Callable[[], int]) -> None:
        self._total = total
        self._chosen = self._later = False
        self._before = 0

    def begin_turn(self) -> None:
        """Leave out of account what others have had of the GPUs up to now."""
        if not self._chosen:
            self._before = self._total()

    def is_initialized(self) -> bool:
        if not self._chosen:
            self._chosen = self._total() != self._before
        return self._chosen

    def initialize(self) -> None:
        self._chosen = self._chosen or not self._later

    def later(self, function: Callable[[], object]) -> None:
        """Call at once what waits on a real GPU until CUDA is initialised: the generators are here from the start."""
        before, self._later = self._later, True
        try:
            function()
        finally:
            self._later = before


def patches(cuda_here: Callable[[], CudaState | None]) -> Iterator[Patch]:
    """The rows. ``cuda_here()`` is that of the process or rank that asks; None where torch's own answers stand."""

    def asked(real: Callable[[], bool]) -> bool:
        cuda = cuda_here()
        return real() if cuda is None else cuda.is_initialized()

    def wanted(real: Callable[[], object]) -> None:
        cuda = cuda_here()
        real() if cuda is None else cuda.initialize()

    def later(real: Callable[..., object], function: Callable[[], object], **options: Any) -> None:
        cuda = cuda_here()
        real(function, **options) if cuda is None else cuda.later(function)

    def chosen(real: Callable[[int], object], index: int) -> object:
        result = real(index)
        if (cuda := cuda_here()) is not None:
            cuda.initialize()
        return result

    for owner in (torch.cuda, torch.cuda.memory, torch.cuda.random):
        yield Patch.wrap(owner, "is_initialized", asked)
        yield Patch.wrap(owner, "_lazy_init", wanted)
    for owner in (torch.cuda, torch.cuda.random):
        yield Patch.wrap(owner, "_lazy_call", later)
    for name in ("_cuda_setDevice", "_accelerator_setDeviceIndex"):
        yield Patch.wrap(torch._C, name, chosen)
