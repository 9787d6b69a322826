"""The table of everything that a simulated machine changes: all patches, and the changes that stay.

``table.txt`` has a sentence on each change that stays.
"""

from __future__ import annotations

from labkit.base.files import rows_beside
from labkit.base.patches import Patch

from .. import hooks
from ..ops import moves, storages  # noqa: F401  # for their patches
from ..state import threads
from ..state.gpu import TheMachine
from . import cuda  # noqa: F401

# Changes left after a machine is closed, and why each is harmless.
STAYS = tuple((what, why) for what, why in rows_beside(__file__))


def table(machine: TheMachine) -> list[Patch]:
    """Return every patch of torch and Python while ``machine`` is in use, made from the present values.

    While replicas take turns, those of :func:`labkit.turns.locks.lock_patches` are applied too.
    """
    return [patch for rows in hooks.patches for patch in rows(machine)]


def prepare_process(machine: TheMachine) -> None:
    """Make the changes of :data:`STAYS`, once for the process."""
    if machine.order != "threads":
        threads.keep_memory_warm()
    for opened in hooks.machine_opened:
        opened(machine)
