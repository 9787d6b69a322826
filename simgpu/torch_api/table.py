"""Everything that a simulated machine changes: the table of all patches, and what stays for the process.

What is said of them in words stands in ``table.txt``.
"""

from __future__ import annotations

from collections.abc import Iterator

from labkit.base.files import rows_beside
from labkit.base.patches import Patch

from .. import hooks
from ..ops import moves, storages  # noqa: F401  # like all that change something, they register themselves
from ..state import threads
from ..state.gpu import TheMachine
from . import cuda  # noqa: F401

_ROWS = rows_beside(__file__)
# Closing a machine does not take these back; each with the reason why that is harmless.
STAYS = tuple((what, why) for kind, what, why in _ROWS if kind == "stays")
# The attributes that the machine puts on objects of torch and of Python.
ATTRIBUTES = {name: what for kind, name, what in _ROWS if kind == "attribute"}
# The values of the process that change while the program runs, by module; whatever is registered is not among them.
VALUES = {module: what for kind, module, what in _ROWS if kind == "value"}


def table(machine: TheMachine) -> Iterator[Patch]:
    """Every change in torch and Python while ``machine`` is in use; each row is made from what stands there now.

    While replicas take turns :func:`labkit.turns.locks.lock_patches` is in too.
    """
    for rows in hooks.patches:
        yield from rows(machine)


def prepare_process(machine: TheMachine) -> None:
    """Do what :data:`STAYS`, once for the process."""
    if machine.order != "threads":
        threads.keep_memory_warm()
    for opened in hooks.machine_opened:
        opened(machine)
