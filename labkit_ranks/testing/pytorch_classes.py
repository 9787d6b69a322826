"""PyTorch's test classes for several ranks, which start processes or threads, on ranks of this process instead.

``MultiProcessTestCase`` (with it ``DTensorTestBase`` and ``FSDPTest``), ``MultiThreadedTestCase`` and
``MultiProcContinuousTest`` of :mod:`torch.testing._internal`. Each rank runs the same method of its own instance, whose
class is the rank's own: what a test writes on the class stays its rank's.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import tempfile
import types
import unittest
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

from torch import cuda, distributed
from torch._C._distributed_c10d import FileStore
from torch.distributed import distributed_c10d
from torch.testing._internal import common_distributed as common
from torch.testing._internal.common_utils import set_rng_seed

from labkit.base.patches import Patch

from ..rank.rank import current_thread_rank
from ..threads.world import RanksFailed
from .started_ranks import GENERIC_SKIP, Ranks, errors_text, fit_threads


def run_on(ranks: Ranks, body: Callable[[int], object]) -> list[int | None]:
    """Call ``body(rank)`` in each rank; return the exit codes. Raises RuntimeError with the ranks' tracebacks."""
    try:
        return ranks.run(body)
    except RanksFailed as failed:
        text = errors_text(failed)
    raise RuntimeError(text)


def own_class(cls: type, **changed: object) -> Any:
    """Return a subclass of ``cls`` with the same names, on which one rank may write."""
    names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    if hasattr(cls, "_tls"):  # of a device-generic class: what its main thread has set
        names["_tls"] = types.SimpleNamespace(precision=cls._precision, rel_tol=cls._rel_tol)  # type: ignore[attr-defined, assignment]
    return type(cls)(cls.__name__, (cls,), {**names, **changed})


def skip_if(codes: list[int | None], reason: str) -> None:
    """Raise SkipTest if the first rank ended as PyTorch's decorators end one whose test is not for this machine."""
    for skip in common.TEST_SKIPS.values():
        if codes[0] == skip.exit_code:
            raise unittest.SkipTest(reason if skip.exit_code == GENERIC_SKIP and reason else skip.message)


def patches(_: object) -> Iterator[Patch]:
    """Yield the changes of PyTorch's classes."""
    yield from _of_processes()
    yield from _of_threads()
    yield from _of_continuous()


def _of_processes() -> Iterator[Patch]:
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
            codes = run_on(ranks, lambda rank: own_class(type(self))._run(rank, name, file, pipe, **options))
        if test in self.skip_return_code_checks:
            return
        skip_if(codes, ranks.skipped)
        expected = self.special_return_code_checks.get(test, 0)
        if codes[0] != expected:
            raise AssertionError(f"Expected exit code {expected} but got {codes[0]}")

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


def _run_in_group(body: Callable[[], object], rank: int, size: int) -> None:
    """Run ``body`` in a rank with a GPU and a group: PyTorch's threads would share one GPU, as NCCL's ranks cannot."""
    if cuda.device_count() >= size:
        cuda.set_device(rank)
    store = FileStore("threads of a test")
    distributed.init_process_group("cpu:gloo,cuda:nccl", store=store, rank=rank, world_size=size)
    try:
        body()
    finally:
        if distributed.is_initialized():
            distributed.destroy_process_group()


def _of_threads() -> Iterator[Patch]:
    cls = common.MultiThreadedTestCase

    def spawn(real: Any, self: Any) -> None:
        self.threads = []
        if not fit_threads(self.world_size):
            real(self)

    def join_or_run(real: Any, self: Any, test: Any) -> Any:
        original = real(self, test)

        @functools.wraps(test)
        def wrapper(self: Any) -> None:
            if self.rank != self.MAIN_THREAD_RANK:
                test()
                return
            if self.threads:
                original()
                return

            def body(rank: int) -> None:
                own = own_class(type(self))(self._testMethodName)
                own.rank = rank

                def whole() -> None:
                    own.perThreadSetUp()
                    try:
                        getattr(own, self._testMethodName)()
                    finally:
                        own.perThreadTearDown()

                _run_in_group(whole, rank, self.world_size)

            with contextlib.closing(Ranks(self.world_size)) as ranks:
                codes = run_on(ranks, body)
            skip_if(codes, ranks.skipped)

        return types.MethodType(wrapper, self)

    def with_threads(real: Any, func: Any = None, *args: Any, **options: Any) -> Any:
        size = options.get("world_size", common.DEFAULT_WORLD_SIZE)
        if func is None:
            return functools.partial(with_threads, real, **options)

        @functools.wraps(func)
        def wrapper(self: Any, *args: Any, **kwargs: Any) -> None:
            if not fit_threads(size):
                real(func, **options)(self, *args, **kwargs)
                return
            with contextlib.closing(Ranks(size)) as ranks:
                run_on(ranks, lambda rank: _run_in_group(lambda: func(self, *args, **kwargs), rank, size))

        return wrapper

    yield Patch.wrap(cls, "_spawn_threads", spawn)
    yield Patch.wrap(cls, "join_or_run", join_or_run)
    yield Patch.wrap(common, "spawn_threads_and_init_comms", with_threads)


def _of_continuous() -> Iterator[Patch]:
    """A class whose ranks go on from test to test."""
    base = common.MultiProcContinuousTest
    real_tear_down = base.tearDownClass.__func__  # type: ignore[attr-defined]
    real_ensure = base._ensure_processes_spawned.__func__  # type: ignore[attr-defined]

    def ensure(cls: Any) -> None:
        if cls.__dict__.get("_ranks") is not None:
            return
        kind = inspect.getattr_static(cls, "device_type")
        device: Any = kind.fget(cls) if isinstance(kind, property) and kind.fget else cls.device_type
        size = cls._get_world_size(device() if callable(device) else device)
        if not fit_threads(size):
            real_ensure(cls)
            return
        cls.world_size = size
        with tempfile.NamedTemporaryFile(delete=False) as meeting:
            cls.rdvz_file = meeting.name
        cls._ranks = ranks = Ranks(size)
        cls._rank_classes = {rank: own_class(cls, rank=rank, _ranks=None) for rank in range(size)}
        try:
            codes = run_on(ranks, lambda rank: cls._rank_classes[rank]._init_pg(rank, size, cls.rdvz_file))
            skip_if(codes, "")
        except BaseException:
            close(cls)
            raise

    def close(cls: Any) -> None:
        ranks, cls._ranks = cls.__dict__.get("_ranks"), None
        if ranks is not None:
            with contextlib.suppress(Exception):  # the ranks of a failed test have nothing to destroy
                ranks.run(lambda _: distributed.is_initialized() and distributed.destroy_process_group())
            ranks.close()
            with contextlib.suppress(OSError):
                os.remove(cls.rdvz_file)

    def set_up(real: Any, self: Any) -> None:
        if not fit_threads(2):
            real(self)
            return
        super(base, self).setUp()
        if self.rank < 0:
            self.rank = self.MAIN_PROCESS_RANK
            type(self)._ensure_processes_spawned()

    def tear_down_class(cls: Any) -> None:
        if cls.__dict__.get("_ranks") is not None:
            close(cls)
            cls._processes_spawned = False
        real_tear_down(cls)

    def run_main_wait(real: Any, self: Any, test: Any) -> Any:
        original = real(self, test)

        @functools.wraps(test)
        def wrapper(self: Any) -> None:
            cls, identity = type(self), self.id()
            if self.rank != self.MAIN_PROCESS_RANK:
                test()
                return
            if cls.__dict__.get("_ranks") is None:
                original()
                return
            try:
                codes = run_on(cls._ranks, lambda rank: cls._rank_classes[rank]._run_test_given_id(identity))
            except BaseException:  # the group has lost its step: the next test begins with other ranks
                close(cls)
                raise
            skip_if(codes, cls._ranks.skipped)

        return types.MethodType(wrapper, self)

    yield Patch(base, "_ensure_processes_spawned", classmethod(ensure))
    yield Patch(base, "tearDownClass", classmethod(tear_down_class))
    yield Patch.wrap(base, "setUp", set_up)
    yield Patch.wrap(base, "_worker_run_main_wait", run_main_wait)


def barrier_patches(module: Any) -> Iterator[Patch]:
    """Yield the changes of ``distributed_test.Barrier``, whose processes meet by files named by process."""
    barrier = module.Barrier
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
