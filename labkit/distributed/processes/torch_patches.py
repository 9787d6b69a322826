"""The changes in torch in a process that sees the machine by its environment, and may be one rank of several."""

from __future__ import annotations

import functools
from collections.abc import Iterator

from ...base.patches import Patch, Patches
from ...machine import machine_in_use
from ..group import torch_patches as of_groups
from ..rank import cuda
from . import recorded, stores
from .transport import Gloo


@functools.cache
def inherit() -> None:
    """From now on ``nccl`` is there: groups of processes over gloo."""
    Patches(_patches).put_in()
    recorded.begin()


def _patches() -> Iterator[Patch]:
    own = cuda.Cuda(_total)
    yield from of_groups.patches(Gloo)
    yield from stores.patches()
    yield from cuda.patches(lambda: own)


def _total() -> int:
    machine = machine_in_use()
    return sum(gpu.total() for gpu in machine.gpus) if machine is not None else 0
