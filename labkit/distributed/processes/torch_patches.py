"""The changes in torch in a process that sees the machine by its environment, and may be one rank of several."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from typing import Any

from ...base.patches import Patch, Patches
from ...machine import machine_in_use
from ..group import torch_patches as of_groups
from ..rank import cuda
from ..rank.rank import alone
from ..rank.visible import Environment, sight
from . import recorded, stores
from .transport import Gloo

environ: Any = os.environ  # whose dictionary is _data


@functools.cache
def inherit() -> None:
    """From now on ``nccl`` is there: groups of processes over gloo."""
    own = cuda.Cuda(_total)
    Patches(lambda: _patches(own)).put_in()
    recorded.begin()
    variables = Environment(environ._data)
    variables.chosen = lambda: _choose_gpus(own)
    environ._data = variables


def _choose_gpus(own: cuda.Cuda) -> None:
    """This process has said which GPUs it sees; CUDA listens until it is in use."""
    machine = machine_in_use()
    if machine is None or own.is_initialized():
        return
    sight(machine).show(machine)
    own.begin_turn()
    if alone.rank is not None:
        alone.rank.gpus, alone.rank.chose = machine.gpus, True


def _patches(own: cuda.Cuda) -> Iterator[Patch]:
    yield from of_groups.patches(Gloo)
    yield from stores.patches()
    yield from cuda.patches(lambda: own)


def _total() -> int:
    machine = machine_in_use()
    return sum(gpu.total() for gpu in machine.gpus) if machine is not None else 0
