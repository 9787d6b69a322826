"""What is changed in torch in a process that sees the machine by its environment, and may be one rank of several."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import torch

from ...base.patches import Patch, Patches
from ...machine import machine_in_use
from ..threads.torch_patches import of_processes
from . import recorded, stores


@functools.cache
def inherit() -> None:
    """From now on ``nccl`` is there: groups of processes over gloo."""
    Patches(_rows).put_in()
    recorded.begin()


def _rows() -> Iterator[Patch]:
    yield from of_processes()
    yield from stores.rows()
    yield from _Cuda().patches()


class _Cuda:
    """Whether this process has chosen a GPU or had memory of one: init_device_mesh chooses for who has not."""

    def __init__(self) -> None:
        self.chosen = self.later = False

    def patches(self) -> Iterator[Patch]:
        for owner in (torch.cuda, torch.cuda.memory, torch.cuda.random):
            yield Patch(owner, "is_initialized", self.is_initialized)
            yield Patch(owner, "_lazy_init", self.lazy_init)
        for owner in (torch.cuda, torch.cuda.random):
            yield Patch(owner, "_lazy_call", self.lazy_call)
        for name in ("_cuda_setDevice", "_accelerator_setDeviceIndex"):
            yield Patch(torch._C, name, self._choosing(getattr(torch._C, name)))

    def is_initialized(self) -> bool:
        machine = machine_in_use()
        return machine is not None and (self.chosen or any(gpu.total() for gpu in machine.gpus))

    def lazy_init(self) -> None:
        self.chosen = self.chosen or not self.later

    def lazy_call(self, function: Callable[[], object], **_: object) -> None:
        """On a real GPU this waits until CUDA is initialised; here the generators are there from the start."""
        before, self.later = self.later, True
        try:
            function()
        finally:
            self.later = before

    def _choosing(self, choose: Callable[[int], object]) -> Callable[[int], object]:
        @functools.wraps(choose)
        def chosen(index: int) -> object:
            result = choose(index)
            self.chosen = True
            return result

        return chosen
