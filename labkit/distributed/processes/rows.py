"""What is changed in torch in a process that sees the machine by its environment and may be one of several ranks."""

from __future__ import annotations

import functools

from ...base.patches import Patches
from ..torch_rows import of_processes


@functools.cache
def _patches() -> Patches:
    patches = Patches(of_processes)
    patches.put_in()
    return patches


def inherit() -> None:
    """From now on ``nccl`` is there: groups of processes over gloo."""
    _patches()
