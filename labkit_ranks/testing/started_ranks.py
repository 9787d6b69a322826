"""Run ranks that tests start as threads of this process, without torchrun's variables."""

from __future__ import annotations

import os
import traceback
import unittest
from collections.abc import Callable
from typing import Any

import torch

from ..rank.process_state import ProcessState
from ..rank.rank import current_thread_rank
from ..threads.world import RanksFailed, World

# PyTorch's exit code of a test process whose test is skipped with a reason of its own.
GENERIC_SKIP = 86


class Ranks:
    """Threads instead of the ``size`` processes that a test would start.

    largest   the most ranks that one test had, for reports.
    """

    largest = 0

    def __init__(self, size: int) -> None:
        self.size, self.skipped = size, ""
        ProcessState.keep_modules()
        self.world = World(size)

    def run(self, body: Callable[[int], object]) -> list[int | None]:
        """Call ``body(rank)`` in every rank; return the exit codes (None: ended by another rank's error).

        Raises RanksFailed.
        """
        Ranks.largest = max(Ranks.largest, self.size)
        variables = dict(os.environ)

        def work(rank: Any) -> int:
            for name in rank.environ:  # torchrun's
                os.environ.pop(name, None)
                if name in variables:
                    os.environ[name] = variables[name]
            try:
                body(rank.number)
            except SystemExit as ended:
                return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
            except unittest.SkipTest as skipped:
                self.skipped = str(skipped)
                return GENERIC_SKIP
            return 0

        try:
            return list(self.world.run(work))
        finally:
            self.world.machine.use_in_thread().__enter__()  # a rank may have taken the mode off this thread

    def close(self) -> None:
        self.world.close()
        ProcessState.kept = frozenset()


def fit_threads(size: int) -> bool:
    """Return whether ``size`` ranks can run as threads: not in a rank, and each with its own GPU."""
    return current_thread_rank() is None and size <= torch.cuda.device_count()


def errors_text(failed: RanksFailed) -> str:
    """Return the tracebacks of all failed ranks, in the order of failure."""
    numbers = [failed.rank, *sorted(failed.errors.keys() - {failed.rank})]
    return "\n".join(
        f"Rank {number}:\n{''.join(traceback.format_exception(failed.errors[number]))}" for number in numbers
    )
