"""Everything that a simulated machine changes: the table of all patches, and what stays for the process."""

from __future__ import annotations

from collections.abc import Iterator

from ...base.patches import Patch
from .. import hooks
from ..ops import gradients, mode, moves, storages
from ..state import random, streams, threads
from ..state.gpu import TheMachine
from . import cuda

SUBJECTS = (storages, streams, random, cuda, gradients, mode, moves, threads)

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


def table(machine: TheMachine) -> Iterator[Patch]:
    """Every change in torch and Python while ``machine`` is in use; each row is made from what stands there now.

    While replicas take turns :func:`labkit.turns.locks.waits` is in too.
    """
    for rows in (*(subject.patches for subject in SUBJECTS), *hooks.patches):
        yield from rows(machine)


def prepare_process(machine: TheMachine) -> None:
    """Do what :data:`STAYS`, once for the process."""
    if machine.order != "threads":
        threads.share_one_arena()
    for opened in hooks.opened:
        opened(machine)
