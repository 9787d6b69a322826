"""Keys in a store between processes, and how a rank waits for them without keeping others from the store."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from time import monotonic
from typing import Any

# The folder in which ranks leave what was told of them, for the launcher, in a file of their attempt's number.
REPORTS = "LABKIT_REPORTS"

# As Python has it: a rank that sleeps here does not hand on the baton of its main thread.
sleep = time.sleep


def growing_pauses() -> Iterator[float]:
    """Seconds between two looks into a store: longer and longer ones."""
    pause = 0.0005
    while True:
        yield pause
        pause = min(2 * pause, 0.02)


class KeysEvent:
    """Stands for an event that is set when all ``keys`` are there."""

    def __init__(self, store: Any, keys: Sequence[str]) -> None:
        self._store, self.keys = store, list(keys)

    def is_set(self) -> bool:
        return bool(self._store.check(self.keys))

    def wait(self, seconds: float) -> bool:
        """Wait until it is set; False if ``seconds`` were over before."""
        end = monotonic() + seconds
        for pause in growing_pauses():
            if self.is_set():
                return True
            if (left := end - monotonic()) <= 0:
                return False
            sleep(min(left, pause))
        return False


def key_prefix(name: str) -> str:
    """The prefix of keys about ``name``. torchrun's static rendezvous keeps its store over restarts."""
    return f"labkit/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/{name}"
