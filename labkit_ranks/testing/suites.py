"""Run other people's tests under ``pytest --gpus N``, with ranks as threads of the process that starts them.

:func:`begin` is an entry point of the bootstrap (simgpu/children): it runs in pytest's process and in every child
process once torch is imported.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.multiprocessing.spawn  # noqa: F401 (the module; torch.multiprocessing.spawn is its function)

from labkit.base.patches import Patch, Patches
from simgpu.children import environment as children

from . import triton_stand_in


@functools.cache
def begin() -> None:
    """Change torch in this process and in children."""
    children.add_entry("labkit_ranks.testing.suites:begin")
    spawning = sys.modules["torch.multiprocessing.spawn"]
    start = Patch.wrap(spawning, "start_processes", _start_processes)
    Patches(lambda: [start, Patch(torch.multiprocessing, "start_processes", start.value)]).put_in()
    triton_stand_in.offer()


def change_test_classes() -> None:
    """Change PyTorch's test classes, if the collected tests have imported them."""
    if "torch.testing._internal.common_distributed" in sys.modules:
        from .pytorch_classes import CHANGES

        CHANGES.put_in()


def _start_processes(
    real: Callable[..., Any], fn: Any, args: Sequence[Any] = (), nprocs: int = 1, join: bool = True, *more: Any,
    **options: Any,
) -> Any:  # fmt: skip
    """Run ``fn(rank, *args)`` in ranks, each with its own copy of the arguments, as ``torch.multiprocessing.spawn``."""
    from .started_ranks import Ranks, fit_threads  # late: most processes start no ranks

    if nprocs < 2 or not join or not fit_threads(nprocs):
        return real(fn, args, nprocs, join, *more, **options)
    from torch.multiprocessing.spawn import ProcessExitedException, ProcessRaisedException

    from ..threads.world import RanksFailed

    with contextlib.closing(Ranks(nprocs)) as ranks:
        try:
            codes = ranks.run(lambda rank: fn(rank, *map(_copy, args)))
        except RanksFailed as failed:
            error = "".join(traceback.format_exception(failed.error))
            text = f"\n\n-- Process {failed.rank} terminated with the following error:\n{error}"
            raise ProcessRaisedException(text, failed.rank, os.getpid()) from failed.error
    for rank, code in enumerate(codes):
        if code:
            text = f"process {rank} terminated with exit code {code}"
            raise ProcessExitedException(text, error_index=rank, error_pid=os.getpid(), exit_code=code)
    return None


def _copy(value: Any) -> Any:
    try:
        return copy.deepcopy(value)
    except Exception:  # queues and locks are shared by processes, too
        return value
