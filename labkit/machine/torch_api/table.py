"""Everything that a simulated machine changes: the table of all patches, and what stays for the process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ...base.patches import Patch
from ..features import (
    autocast,
    dlpack,
    fakes,
    libraries,
    processes,
    profiling,
    reducers,
    refused,
    saved_tensors,
    scripts,
    types,
)
from ..features.dtensors import wrappers as dtensors
from ..features.watching import telling as watching
from ..ops import below, gradients, mode, moves, storages
from ..state import random, streams, threads
from . import cuda

if TYPE_CHECKING:
    from ..machine import Machine

SUBJECTS = (
    storages, streams, random, cuda, refused, types, scripts, gradients, saved_tensors, autocast, below, libraries,
    dlpack, dtensors, fakes, mode, moves, reducers, watching, threads, processes, profiling,
)  # fmt: skip

# What no closing takes back, and why that is harmless.
STAYS = (
    (
        "`mallopt(M_ARENA_MAX, 1)`",
        "new threads take memory that old ones warmed up; glibc's allocator only, once",
    ),
    (
        "in `torch.distributed.tensor`: `DTensor.__new__`, `OpDispatcher.redistribute_local_args`, "
        "`OpDispatcher._custom_op_handlers`, "
        "`OffsetBasedRNGTracker.__new__`, `run_dtensor_rng_op`, where it is imported while a machine is in use",
        "wrapped likewise; imported earlier, they are taken back",
    ),
    (
        "`__torch_dispatch__` of classes made while a machine is in use",
        "wrapped, so that it sees the machine; without one it is called as it is",
    ),
    ("`os.register_at_fork`", "Python cannot take a callback back; without a machine ours does nothing"),
)


def table(machine: Machine) -> Iterator[Patch]:
    """Every change in torch and Python while ``machine`` is in use; each row is made from what stands there now.

    While replicas take turns :func:`labkit.turns.locks.waits` is in too.
    """
    for subject in SUBJECTS:
        yield from subject.patches(machine)


def prepare_process(machine: Machine) -> None:
    """Do what :data:`STAYS`, once for the process."""
    if machine.order != "threads":
        threads.share_one_arena()
    processes.watch_forks()
