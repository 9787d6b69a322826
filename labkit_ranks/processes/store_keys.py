"""Keys in a store between processes, and waits for keys that don't block the store."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from time import monotonic
from typing import Any

# The folder where ranks leave reports for the launcher, in a file for each attempt.
REPORTS = "LABKIT_REPORTS"

# Python's own sleep: the patched one would yield the turn.
sleep = time.sleep


def growing_pauses() -> Iterator[float]:
    """Yield growing pauses between two looks into a store, in seconds."""
    pause = 0.0005
    while True:
        yield pause
        pause = min(2 * pause, 0.02)


class KeysEvent:
    """An event that is set when all ``keys`` are in the store."""

    def __init__(self, store: Any, keys: Sequence[str]) -> None:
        self._store, self.keys = store, list(keys)

    def is_set(self) -> bool:
        return bool(self._store.check(self.keys))

    def wait(self, seconds: float) -> bool:
        """Wait until the event is set; return False after ``seconds``."""
        end = monotonic() + seconds
        for pause in growing_pauses():
            if self.is_set():
                return True
            if (left := end - monotonic()) <= 0:
                return False
            sleep(min(left, pause))
        return False


def key_prefix(name: str) -> str:
    """Return the prefix of keys for ``name`` in this attempt: a static rendezvous keeps the store over restarts."""
    return f"labkit/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/{name}"
