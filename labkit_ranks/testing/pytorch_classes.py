"""PyTorch's test classes that start a process for each rank and test, on ranks of this process instead.

They are ``MultiProcessTestCase``, ``DTensorTestBase`` and ``FSDPTest`` of :mod:`torch.testing._internal`. Each rank
runs the same method of its own instance, whose class is the rank's own: what a test writes on the class stays its
rank's. ``MultiProcContinuousTest`` starts processes once for a class, and ``MultiThreadedTestCase`` starts threads;
both run as they are.
"""

from __future__ import annotations

import contextlib
import os
import sys
import types
import unittest
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from torch import distributed
from torch.distributed import distributed_c10d
from torch.testing._internal import common_distributed as common
from torch.testing._internal.common_utils import set_rng_seed

from labkit.base.patches import Patch, Patches

from ..rank.rank import current_thread_rank
from ..threads.world import RanksFailed
from .started_ranks import GENERIC_SKIP, Ranks, errors_text, fit_threads


def own_class(cls: type) -> Any:
    """Return a subclass of ``cls`` with the same names, on which one rank may write."""
    names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    if hasattr(cls, "_tls"):  # of a device-generic class: what its main thread has set
        names["_tls"] = types.SimpleNamespace(precision=cls._precision, rel_tol=cls._rel_tol)  # type: ignore[attr-defined, assignment]
    return type(cls)(cls.__name__, (cls,), names)


def _of_processes() -> Iterator[Patch]:
    """Yield the changes of ``MultiProcessTestCase``."""
    cls = common.MultiProcessTestCase

    def start(real: Any, self: Any, *args: object) -> None:
        if fit_threads(int(self.world_size)):
            self.processes = []
        else:
            real(self, *args)

    def join(real: Any, self: Any, test: Any) -> None:
        if self.processes:
            real(self, test)
            return
        name, file = self._current_test_name(), self.file_name
        pipe = types.SimpleNamespace(send=lambda _: None, close=lambda: None)
        options = {"fake_pg": getattr(self, "fake_pg", False)}
        with contextlib.closing(Ranks(int(self.world_size))) as ranks:
            try:
                codes = ranks.run(lambda rank: own_class(type(self))._run(rank, name, file, pipe, **options))
            except RanksFailed as failed:
                raise RuntimeError(errors_text(failed)) from None
        if codes[0] == GENERIC_SKIP and ranks.skipped:
            raise unittest.SkipTest(ranks.skipped)
        self.processes = [
            types.SimpleNamespace(exitcode=code, pid=os.getpid(), terminate=lambda: None) for code in codes
        ]
        self._check_return_codes(test, 0.0)

    def run_test(real: Any, self: Any, name: str, pipe: Any) -> None:
        if not isinstance(pipe, types.SimpleNamespace):
            real(self, name, pipe)
            return
        set_rng_seed()
        getattr(self, name)()
        if self.destroy_pg_upon_exit:
            with contextlib.suppress(AssertionError, ValueError):
                distributed.destroy_process_group()

    yield Patch.wrap(cls, "_spawn_processes", start)
    yield Patch.wrap(cls, "_start_processes", start)
    yield Patch.wrap(cls, "_join_processes", join)
    yield Patch.wrap(cls, "run_test", run_test)


def _of_barrier(barrier: Any) -> Iterator[Patch]:
    """Yield the changes of ``distributed_test.Barrier``, whose processes meet by files named by process."""
    real = barrier.sync.__func__
    counts: Counter[int | None] = Counter()

    def sync(cls: Any, wait_for: int | None = None, timeout: float = 10) -> None:
        rank = current_thread_rank()
        if rank is None:
            real(cls, wait_for, timeout)
            return
        counts[rank.number] += 1
        store, name = distributed_c10d._get_default_store(), f"labkit barrier {counts[rank.number]}"
        if store.add(name, 1) == (wait_for or distributed.get_world_size()):
            store.set(f"{name} open", "")
        store.wait([f"{name} open"], timedelta(seconds=timeout))

    def init(real: Any) -> None:
        counts.clear()
        real()

    yield Patch(barrier, "sync", classmethod(sync))
    yield Patch.wrap(barrier, "init", init)


def _changes() -> Iterator[Patch]:
    yield from _of_processes()
    if (module := sys.modules.get("torch.testing._internal.distributed.distributed_test")) is not None:
        yield from _of_barrier(module.Barrier)


CHANGES = Patches(_changes)
