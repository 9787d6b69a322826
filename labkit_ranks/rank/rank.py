"""A rank in a thread, and functions that return the current rank."""

from __future__ import annotations

import os
import queue
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from math import inf
from time import perf_counter
from types import ModuleType
from typing import Any, Protocol
from weakref import WeakSet

import torch

from labkit import turns
from labkit.base.language import wrong
from labkit.base.patches import Patch
from simgpu import hooks

from ..calls.call import CollectiveCall
from ..calls.visits import LineVisits
from .clock import TimedRank
from .cuda_state import CudaState
from .process_state import ProcessState
from .visible_gpus import VisibleGpus

# Called with (rank, call) when a rank makes a call, possibly in another of its threads.
call_recorded: hooks.Hook[Callable[[Any, CollectiveCall], object]] = hooks.Hook()
# Called with a Work when its rank waits for it, or reads that it is completed.
work_settled: hooks.Hook[Callable[[Any], object]] = hooks.Hook()


class WorldOfRank(Protocol):
    """The attributes of a world that a rank uses; see ``threads/world.py``.

    transports   the transports of the ranks' groups; ``stores`` the values of stores, by port or file; ``kept`` stores
                 that only C++ holds otherwise.
    failed       the error of each rank that failed.
    helpers      threads that ranks have started, which take no turns; ``watching`` their pending calls, with the
                 condition that each waits for.
    """

    size: int
    ranks: tuple[Rank, ...]
    transports: Any
    stores: dict[Any, Any]
    kept: list[Any]
    failed: dict[int, BaseException]
    helpers: WeakSet[threading.Thread]
    watching: dict[int, tuple[CollectiveCall, Callable[[], bool]]]

    def choose_gpus(self, rank: Rank) -> None: ...

    def fail(self, rank: Rank, error: BaseException) -> None: ...

    def is_idle(self) -> bool: ...

    def mark_if_deadlocked(self, call: CollectiveCall) -> None: ...


class Rank(TimedRank):
    """A process of a distributed program, as a thread that lasts as long as its ``World``.

    number, size   the global rank, and the number of ranks.
    local, node    the rank on its node (LOCAL_RANK), and the number of the node.
    main           the module ``__main__`` of the rank, with the globals of its code.
    gpus           the GPUs that the rank sees: those of its node, unless it has chosen.
    error          the error of the last run, or None.
    """

    def __init__(
        self, world: WorldOfRank, number: int, local: int, node: int, environ: Mapping[str, str]
    ) -> None:
        super().__init__(number, local, node)
        self.world, self.size = world, world.size
        # Seeds for ranks that set none: different in each rank, the same in every run.
        self.seed = 0x1AB + number
        self.main = ModuleType("__main__")
        self.environ = dict(environ)
        self.state = ProcessState(self)
        self.visible_gpus: VisibleGpus | None = None
        self.error: BaseException | None = None
        self.waits_in_c = False  # whether the rank waits in a call of C's, while the others run
        self.result: Any = None
        self.task: turns.ScheduledTask | None = None
        # For deadlock reports: the collective that the rank waits in.
        self.waits: CollectiveCall | None = None
        # For deadlock reports: last call, visits to lines with calls, number of the last call in each group.
        self.last: CollectiveCall | None = None
        self.visits = LineVisits()
        self.seqs: dict[str, int] = {}
        # The number of groups created, by name, members and store.
        self.made: dict[Any, int] = {}
        self.cuda = CudaState(lambda: sum(gpu.total() for gpu in self.gpus))
        self.groups: Any = None  # the rank's own torch.distributed.distributed_c10d._world, once used
        self._jobs: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._idle = threading.Event()
        self._idle.set()

    @property
    def name(self) -> str:
        return f"rank {self.number}"

    def record_call(self, call: CollectiveCall) -> None:
        """Record ``call``, which the rank makes now."""
        super().record_call(call)
        self.last = call
        self.visits.add(call)
        if not call.is_message:
            self.seqs[call.group] = call.seq
        for tell in call_recorded:
            tell(self, call)

    def choose_gpus(self) -> None:
        """Apply the rank's change of CUDA_VISIBLE_DEVICES. CUDA reads it only before its first use."""
        if not self.cuda.is_initialized():
            self.world.choose_gpus(self)
            self.chose_gpus = True
            self.cuda.begin_turn()

    def set_visible_gpus(self, sight: VisibleGpus) -> None:
        """Set the GPUs that the rank sees."""
        self.visible_gpus, self.gpus = sight, sight.gpus

    def sleep(self, seconds: float) -> None:
        """Let other ranks run for ``seconds`` of this rank's clock."""
        task = turns.current_task()
        assert task is not None
        until = self.clock() + seconds
        self.asleep = perf_counter()
        try:
            task.wait(lambda: False, "", seconds)
        finally:
            self.asleep = None
            self.wait_until(until)

    def wait_in_c(self, ready: Callable[[], bool], seconds: float | None = None) -> None:
        """Let other ranks run until ``ready()``, or for ``seconds``, before a call that blocks in C."""
        task = turns.current_task()
        assert task is not None
        self._wait_outside_turn(lambda: task.wait(ready, "", inf if seconds is None else seconds))

    def call_outside_turn(self, function: Callable[[], Any]) -> Any:
        """Return ``function()``, a blocking call, and let other ranks run meanwhile."""
        task = turns.current_task()
        assert task is not None
        return self._wait_outside_turn(lambda: task.run_outside(function))

    def _wait_outside_turn(self, wait: Callable[[], Any]) -> Any:
        began, self.asleep, self.waits_in_c = self.clock(), perf_counter(), True
        since = self.asleep
        try:
            return wait()
        finally:
            self.asleep, self.waits_in_c = None, False
            self.time.return_at(self, began, perf_counter() - since)

    def begin_turn(self) -> None:
        self.cuda.begin_turn()
        super().begin_turn()

    def end_turn(self) -> None:
        self.cuda.is_initialized()  # asked now: after this turn others allocate memory, too
        super().end_turn()

    # The thread of the rank.

    def start(
        self, task_group: turns.TaskGroup, task: turns.ScheduledTask, function: Callable[[], Any]
    ) -> None:
        """Let the rank's thread call ``function()`` as ``task``, which has the turn."""
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._work, name=self.name, daemon=True)
            self._thread._labkit_rank = self  # type: ignore[attr-defined]  # another rank may have started the thread
            self._thread.start()
        self._idle.clear()
        self._jobs.put((task_group, task, function))

    def _work(self) -> None:
        this_thread.rank = self
        # OpenMP has a number for each thread, which a process sets as it begins.
        if (threads := self.environ.get("OMP_NUM_THREADS", os.environ.get("OMP_NUM_THREADS", ""))).isdigit():
            torch.set_num_threads(int(threads))
            torch.get_num_threads()  # once read, the number no longer follows other threads
        # Threads of a rank are daemons only on request, as those of a main thread.
        threading.current_thread()._daemonic = False  # type: ignore[attr-defined]
        while (job := self._jobs.get()) is not None:
            task_group, task, function = job
            with suppress(turns.TaskEnded, Exception):  # World.run reports errors
                task_group.run_task(task, function)
            del job, task_group, task, function
            self._idle.set()

    def join(self, timeout: float | None = None) -> bool:
        """Wait until the rank's thread is idle."""
        return self._idle.wait(timeout)

    @property
    def thread(self) -> int:
        """The ident of the rank's thread; 0 before it starts."""
        return self._thread.ident or 0 if self._thread is not None else 0

    def stop(self) -> None:
        """Let the rank's thread end once it is idle."""
        self._jobs.put(None)

    def __repr__(self) -> str:
        return f"<rank {self.number} of {self.size}>"


class _ThisThread(threading.local):
    rank: Rank | None = None
    loading = False  # whether the thread is importing


this_thread = _ThisThread()


def current_thread_rank() -> Rank | None:
    """Return the rank of this thread; None outside of ranks."""
    return this_thread.rank


def refuse_in_rank() -> None:
    """Raise RuntimeError in a rank: starting, running or ending ranks would make the rank wait for itself."""
    if current_thread_rank() is not None:
        raise wrong(
            RuntimeError,
            en="ranks cannot be started, run or ended by a rank: do it outside, in a cell without %%ranks",
            zh="不能在一个 rank 里启动、运行或关闭一组 rank：放到外面做，比如放进不带 %%ranks 的单元格",
        )


@hooks.cuda_initialized.add
def _used_by_rank() -> bool | None:
    return None if this_thread.rank is None else this_thread.rank.cuda.is_initialized()


@hooks.machine_opening.add
def _refuse_machine_in_rank() -> None:
    """Raise RuntimeError in a rank: opening a machine would close the one that all ranks use."""
    if current_rank() is not None:
        raise wrong(
            RuntimeError,
            en="a rank has its GPU already: labkit.simulate() is for programs without ranks, leave it out here",
            zh="每个 rank 已经有自己的 GPU：labkit.simulate() 用于没有 rank 的程序，这里不要写",
        )


class _ThisProcess:
    """Holds the rank of this whole process; None unless ranks are processes."""

    rank: TimedRank | None = None


this_process = _ThisProcess()


def current_rank() -> TimedRank | None:
    """Return the rank of this thread or process; None outside of ranks."""
    return this_thread.rank or this_process.rank


def pause_clock_in_imports() -> Iterator[Patch]:
    """Yield the patch that stops a rank's clock while it imports a module, which only the first rank may do."""
    bootstrap: Any = sys.modules["_frozen_importlib"]
    load = bootstrap._load_unlocked

    def load_untimed(spec: Any) -> Any:
        rank = current_rank()
        if rank is None or this_thread.loading:
            return load(spec)
        this_thread.loading = True
        try:
            with rank.pause_clock():
                return load(spec)
        finally:
            this_thread.loading = False

    # Python removes the frames of an import from tracebacks by the name of their file (Python/import.c,
    # remove_importlib_frames), and stops at a frame of another file. So give this function that file name.
    load_untimed.__code__ = load_untimed.__code__.replace(co_filename=load.__code__.co_filename)
    yield Patch(bootstrap, "_load_unlocked", load_untimed)
