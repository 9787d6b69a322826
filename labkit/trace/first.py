"""The first items of a run that has more of them than are worth keeping."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class First(list[Any]):
    """Keeps the first ``most`` items that are appended. ``see`` is given every item, and whether it was kept."""

    def __init__(self, most: int, see: Callable[[Any, bool], None]) -> None:
        super().__init__()
        self._most, self._see = most, see

    def append(self, found: Any) -> None:
        keeps = len(self) < self._most
        self._see(found, keeps)
        if keeps:
            super().append(found)
