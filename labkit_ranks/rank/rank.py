"""One rank: its numbers, its thread, its clock, and the place in which this thread stands for it."""

from __future__ import annotations

import os
import queue
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
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

# (rank, call): the rank makes this call. Another thread than its own may.
call_recorded: hooks.Hook[Callable[[Any, CollectiveCall], object]] = hooks.Hook()
# (work of a call): its rank waits for it, or sees that it is done.
work_settled: hooks.Hook[Callable[[Any], object]] = hooks.Hook()


class WorldOfRank(Protocol):
    """The part of all ranks together that one of them asks for; see ``threads/world.py``.

    meetings   where the calls of their groups meet, ``stores`` the values of the stores by port or file, and ``kept``
               the stores that nobody but C++ may hold.
    failed     what each raised that did; ``helpers`` the threads that ranks have started and that take no turns, and
               ``watching`` the calls of those of them that wait, with what each looks for.
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

    number, size   its global rank, and how many there are.
    local, node    its rank on its node (LOCAL_RANK), and the node's number.
    main           its ``__main__``: what code that it runs finds as its globals.
    gpus, sight    the GPUs that it sees: those of its node, unless it has chosen.
    error          what it raised in the last run; None.
    """

    def __init__(
        self, world: WorldOfRank, number: int, local: int, node: int, environ: Mapping[str, str]
    ) -> None:
        super().__init__(number, local, node)
        self.world, self.size = world, world.size
        # A process that nobody seeds has random numbers of its own. Here they are the same in every run.
        self.seed = 0x1AB + number
        self.main = ModuleType("__main__")
        self.environ = dict(environ)
        self.state = ProcessState(self)
        self.visible_gpus: VisibleGpus | None = None
        # Called when it has chosen other GPUs than the one that was chosen for it, as in a notebook.
        self.on_gpus_chosen: Callable[[], object] | None = None
        self.error: BaseException | None = None
        self.waits_in_c = False  # whether it lets the others go on while it stands in a call of C's
        self.result: Any = None
        self.task: turns.ScheduledTask | None = None
        # What it waits for now, if that is a collective; for the one who tells of a deadlock.
        self.waits: CollectiveCall | None = None
        # For the same: its last call, its visits to lines with calls, and the number of its last call of each group.
        self.last: CollectiveCall | None = None
        self.visits = LineVisits()
        self.seqs: dict[str, int] = {}
        # The number of groups that it has made, by name, members and store.
        self.made: dict[Any, int] = {}
        self.cuda = CudaState(lambda: sum(gpu.total() for gpu in self.gpus))
        self.groups: Any = None  # its torch.distributed.distributed_c10d._world, once it has asked for that
        self._jobs: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._idle = threading.Event()
        self._idle.set()

    @property
    def name(self) -> str:
        return f"rank {self.number}"

    def record_call(self, call: CollectiveCall) -> None:
        """It makes this call."""
        super().record_call(call)
        self.last = call
        self.visits.add(call)
        if not call.is_message:
            self.seqs[call.group] = call.seq
        for tell in call_recorded:
            tell(self, call)

    def choose_gpus(self) -> None:
        """It has said which GPUs it sees; CUDA listens until it is in use."""
        untouched = self.on_gpus_chosen is not None and self.gpu is not None and not self.gpu.total()
        if untouched or not self.cuda.is_initialized():
            self.world.choose_gpus(self)
            self.chose_gpus = True
            self.cuda.begin_turn()
            if self.on_gpus_chosen is not None:
                self.on_gpus_chosen()

    def set_visible_gpus(self, sight: VisibleGpus) -> None:
        """From now on these are the GPUs that it sees."""
        self.visible_gpus, self.gpus = sight, sight.gpus

    def sleep(self, seconds: float) -> None:
        """Let the others go on for ``seconds``, which pass on its clock."""
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
        """Let the others go on until ``ready()``, or for ``seconds``: it stands in a call that waits."""
        task = turns.current_task()
        assert task is not None
        self._wait_outside_turn(lambda: task.wait(ready, "", inf if seconds is None else seconds))

    def call_outside_turn(self, function: Callable[[], Any]) -> Any:
        """The result of ``function()``, a call that waits; the others go on meanwhile."""
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
        self.cuda.is_initialized()  # asked in its turn: afterwards others have memory, too
        super().end_turn()

    # Its thread.

    def start(
        self, task_group: turns.TaskGroup, task: turns.ScheduledTask, function: Callable[[], Any]
    ) -> None:
        """Let its thread call ``function()`` as ``member``, whose turn it is."""
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._work, name=self.name, daemon=True)
            self._thread._labkit_rank = self  # type: ignore[attr-defined]  # another rank may start it
            self._thread.start()
        self._idle.clear()
        self._jobs.put((task_group, task, function))

    def _work(self) -> None:
        this_thread.rank = self
        # OpenMP counts for each thread; a process reads it as it begins.
        if (threads := self.environ.get("OMP_NUM_THREADS", os.environ.get("OMP_NUM_THREADS", ""))).isdigit():
            torch.set_num_threads(int(threads))
            torch.get_num_threads()  # asked once, a thread no longer takes what others set
        # Threads that it starts are daemons only if they are to be, as those of a process's main thread.
        threading.current_thread()._daemonic = False  # type: ignore[attr-defined]
        while (job := self._jobs.get()) is not None:
            task_group, task, function = job
            with suppress(turns.TaskEnded, Exception):  # World.run tells of errors
                task_group.run_task(task, function)
            del job, task_group, task, function
            self._idle.set()

    def join(self, timeout: float | None = None) -> bool:
        """Wait until its thread has nothing to do."""
        return self._idle.wait(timeout)

    @property
    def thread(self) -> int:
        """The ident of its thread, 0 before it has one."""
        return self._thread.ident or 0 if self._thread is not None else 0

    def stop(self) -> None:
        """Let its thread end when it has nothing to do."""
        self._jobs.put(None)

    def __repr__(self) -> str:
        return f"<rank {self.number} of {self.size}>"


class _ThisThread(threading.local):
    rank: Rank | None = None
    loading = False  # whether it loads a module


this_thread = _ThisThread()


def current_thread_rank() -> Rank | None:
    """The rank that this thread is; None outside."""
    return this_thread.rank


def refuse_in_rank() -> None:
    """Raise RuntimeError in a rank: who starts, runs or ends ranks waits for them, and a rank would for itself."""
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
    """Raise RuntimeError in a rank: a machine that it opened would be the other ranks' too, with their tensors gone."""
    if current_rank() is not None:
        raise wrong(
            RuntimeError,
            en="a rank has its GPU already: labkit.simulate() is for programs without ranks, leave it out here",
            zh="每个 rank 已经有自己的 GPU：labkit.simulate() 用于没有 rank 的程序，这里不要写",
        )


class _ThisProcess:
    """The rank that this whole process is, where each has a process of its own; None elsewhere."""

    rank: TimedRank | None = None


this_process = _ThisProcess()


def current_rank() -> TimedRank | None:
    """The rank that this thread is, or this process; None where neither is one."""
    return this_thread.rank or this_process.rank


@contextmanager
def internal_work() -> Iterator[None]:
    """A context for our own work in a process that is a rank: its clock stands, and no wait is the script's."""
    with turns.keep_turn(), nullcontext() if this_process.rank is None else this_process.rank.pause_clock():
        yield


def pause_clock_in_imports(loaded: Callable[[], object] = bool) -> Iterator[Patch]:
    """The row by which a module's loading takes no time on a rank's clock: the first rank alone may do it for all.

    ``loaded()`` is called when a rank has loaded one.
    """
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
            loaded()

    # A traceback goes from an import straight to the module: Python leaves out the frames between, by the name of their
    # file (Python/import.c, remove_importlib_frames), and would stop at one of another file. So this one has that name.
    load_untimed.__code__ = load_untimed.__code__.replace(co_filename=load.__code__.co_filename)
    yield Patch(bootstrap, "_load_unlocked", load_untimed)
