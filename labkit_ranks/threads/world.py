"""Ranks in one process: threads with turns, each with the state of a process.

A rank runs until it must wait for another (a collective, a message, a key of the store). Then the next rank gets the
turn (:mod:`labkit.turns`), and the state of the process is swapped (:mod:`..rank.process_state`). So the same program
runs in the same order every time, and a deadlock is known at once: no rank can run.
"""

from __future__ import annotations

import os
import sys
import threading
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any
from weakref import WeakSet

import torch
from torch.nn.modules.module import _has_any_global_hook

from labkit import turns
from labkit.base.language import say, wrong
from labkit.base.numbers import MOST_GPUS, integer
from labkit.base.patches import Patches
from labkit.trace import emitting as trace
from labkit.turns.locks import lock_watch
from simgpu import Machine, machine_in_use

from ..calls import faults
from ..calls.call import CollectiveCall
from ..calls.wait_graph import WaitForGraph
from ..rank.enqueued_calls import forget_enqueued
from ..rank.flight_recorder import write_all
from ..rank.memory_samples import sample_at_modules, sample_memory
from ..rank.process_state import ProcessState
from ..rank.rank import Rank, current_thread_rank, refuse_in_rank
from ..rank.visible_gpus import NodeGpus
from .operator_libraries import OperatorLibraries
from .stall_detector import StallDetector
from .thread_patches import patches
from .thread_transport import ThreadTransports, find_rank_state

# The address of the store, where no process listens: the ranks share one.
ADDRESS, PORT = "127.0.0.1", 29500


_isolate_threads: Any = torch._C._distributed_c10d._set_thread_isolation_mode  # type: ignore[attr-defined]

# The open worlds. Another may be open for a moment; the last one restores the process.
_open: dict[World, None] = {}


class RanksFailed(RuntimeError):
    """A rank has failed: ``rank`` first, with ``error``; ``errors`` has those of all ranks that failed."""

    def __init__(self, errors: Mapping[int, BaseException], first: int) -> None:
        self.rank, self.error, self.errors = first, errors[first], dict(errors)
        kind = type(self.error).__name__
        en, zh = f"rank {first} failed: {kind}: {self.error}", f"rank {first} 出错：{kind}：{self.error}"
        super().__init__(say(en=en, zh=zh))


class World:
    """``size`` ranks on simulated GPUs, from its creation until :meth:`close`.

    size     the number of ranks, 1 to 1024: a multiple of ``nodes``.
    nodes    the number of simulated computers, with as many ranks on each.
    memory   of each GPU; ``gpu_model`` is the model that it reports.
    environ  variables in the environment of all ranks, besides torchrun's.
    running  the ranks to run. Each other rank is represented in collectives by the nearest running one below. None:
             all.

    Opens a machine with a GPU for each rank of a node, or uses the current one if it has enough GPUs.
    """

    def __init__(
        self,
        size: int,
        *,
        nodes: int = 1,
        memory: str | int | Sequence[str | int] | None = None,
        gpu_model: str | None = None,
        environ: Mapping[str, str] | None = None,
        running: Collection[int] | None = None,
    ) -> None:
        self.size = integer("size", size, 1, MOST_GPUS)
        self.nodes = integer("nodes", nodes, 1, self.size)
        if self.size % self.nodes:
            en = f"nodes must divide the number of ranks: {self.size} ranks on {self.nodes} nodes"
            zh = f"nodes 必须能整除 rank 数：{self.nodes} 个节点分不匀 {self.size} 个 rank"
            raise wrong(en=en, zh=zh)
        refuse_in_rank()
        each = self.size // self.nodes
        self.stores: dict[Any, Any] = {}
        self.kept: list[Any] = []
        self.ranks = tuple(
            Rank(self, number, number % each, number // each, _environment(number, self.size, each, environ))
            for number in range(self.size)
        )
        self.transports = ThreadTransports(self.ranks, running)
        self._outside = ProcessState(None)
        self._current: Rank | None = None
        self._task_group: turns.TaskGroup | None = None
        self._waits: WaitForGraph | None = None
        self._report: faults.Report | None = None
        self.failed: dict[int, BaseException] = {}
        # Helper threads of ranks that have called a collective, and so may come to others.
        self.helpers: WeakSet[threading.Thread] = WeakSet()
        # Pending calls of helper threads, with the condition that each waits for, by the ident of the thread.
        self.watching: dict[int, tuple[CollectiveCall, Callable[[], bool]]] = {}
        self.closed = False
        found = machine_in_use()
        self._own_machine = found is None or len(found.gpus) < each
        if found is None or self._own_machine:
            found = Machine(each, memory, gpu_model=gpu_model).open()
        self.machine = found
        self._nodes = NodeGpus(self.machine, self.nodes, memory)
        for rank in self.ranks:
            rank.set_visible_gpus(self._nodes.gpus_of_node(rank.node, rank.seed))
        self.libraries = OperatorLibraries()
        self._patches = Patches(lambda: [*patches(), *self.libraries.patches()])
        try:
            self.machine.add_patches(self._patches)
            _open[self] = None
            trace.set_rank_source(_number_and_clock)
            # C++ keeps groups by name for the process, or in this mode for each thread (c10d/RankLocal.hpp).
            _isolate_threads(True)
        except BaseException:
            self._restore_machine()
            raise

    # Running.

    def run(
        self,
        function: Callable[[Rank], Any],
        ranks: Sequence[int] | None = None,
        *,
        to_end: bool = False,
        interrupts: bool = False,
    ) -> list[Any]:
        """Call ``function(rank)`` in each rank (or in ``ranks``); return the results in the ranks' order.

        Raises RanksFailed if a rank fails (the others are ended in their next wait), and KeyboardInterrupt if the
        caller is interrupted (all are ended).

        to_end      no other run follows: pending messages and collectives are errors.
        interrupts  raise an interrupt in each rank, as Ctrl-C does in the processes of a terminal; a second one ends
                    them.
        """
        chosen = [self.ranks[number] for number in (range(self.size) if ranks is None else ranks)]
        self.failed, self._waits = {}, None
        forget_enqueued(*self.ranks)
        now = max(rank.clock() for rank in self.ranks)
        for rank in self.ranks:
            rank.wait_until(now)  # all begin at the same time
        task_group = turns.TaskGroup(watch=lock_watch, explain=self._release_or_explain)
        task_group.passes_interrupts = interrupts
        for rank in chosen:
            rank.error = rank.result = rank.waits = rank.last = None
            rank.visits.clear()
            rank.passes = 0
            rank.task = task = task_group.add(rank.name, self._make_begin(rank, task_group, function))
            task.on_turn = self._make_arrive(rank)
        tasks = [rank.task for rank in chosen if rank.task is not None]
        self._task_group = task_group
        openmp, watch = torch.get_num_threads(), StallDetector(chosen, task_group, sys.stderr)
        self._outside.leave()
        try:
            with sample_at_modules():
                task_group.start()
                for task in tasks:
                    task_group.wait_for(task)
        except BaseException:
            self.transports.forget_pending()
            raise
        finally:
            watch.end()
            self._settle(chosen)
            torch.set_num_threads(openmp)  # for future threads: a rank may have set it
        if task_group.interrupted:
            self.transports.forget_pending()
            raise KeyboardInterrupt
        if self.failed:
            self.transports.forget_pending()
            # Write the flight recorders if ranks hung, or their calls did not match.
            if any(hasattr(error, "report") or "Watchdog" in str(error) for error in self.failed.values()):
                write_all([rank.flight for rank in self.ranks if rank.flight is not None])
            raise RanksFailed(self.failed, next(iter(self.failed)))
        waited = [work for rank in chosen for work in rank.enqueued if not work.slot.is_completed()]
        left = [work.call for work in waited if "told" not in work.call.memo]
        if calls := self.transports.unmet_calls() if to_end else left:
            error = faults.unmet_error(calls, [find_rank_state(rank) for rank in self.ranks])
            self.transports.forget_pending()
            raise RanksFailed({calls[0].rank: error}, calls[0].rank)
        return [rank.result for rank in chosen]

    def _make_begin(
        self, rank: Rank, task_group: turns.TaskGroup, function: Callable[[Rank], Any]
    ) -> Callable[[], None]:
        def work() -> None:
            try:
                if _has_any_global_hook():  # ours, as the script has not begun
                    warnings.filterwarnings(
                        "ignore", r"Using `torch.compile\(module\)` when there are global"
                    )
                sample_memory(rank, "begin")
                rank.result = function(rank)
            except turns.TaskEnded:
                raise
            except BaseException as error:
                rank.error = error
                if isinstance(error, turns.Deadlock) and self._waits is not None and self._report is not None:
                    error.waits = self._waits  # type: ignore[attr-defined]  # a notebook draws it
                    self._report.attach_to(error)
                self.fail(rank, error)
            finally:
                rank.waits = None
                sample_memory(rank, "end")

        def begin() -> None:
            assert rank.task is not None
            rank.start(task_group, rank.task, work)

        return begin

    def fail(self, rank: Rank, error: BaseException) -> None:
        """Record the error of ``rank``, and end the others in their next wait.

        Processes would have run up to there meanwhile: their output and variables are there.
        """
        self.failed.setdefault(rank.number, error)
        task_group = self._task_group
        if task_group is not None and not (task_group.interrupted and isinstance(error, KeyboardInterrupt)):
            with task_group.scheduler:
                for other in [one for one in task_group.scheduler.live if one is not rank.task]:
                    other.ends_on_yield = other.error is None and other.can_run()
                    if not other.ends_on_yield:
                        task_group.scheduler.live.remove(other)
                        other.end()

    def _make_arrive(self, rank: Rank) -> Callable[[], None]:
        def arrive() -> None:
            before = self._current
            if before is rank:
                return
            try:
                if before is not None:
                    before.end_turn()
                    self._current = None
                    before.state.leave()
                assert rank.visible_gpus is not None
                rank.visible_gpus.show(self.machine)
                rank.state.enter()
                self._current = rank
                rank.begin_turn()
            except Exception as error:  # no code of the rank has seen it
                self.fail(rank, error)
                raise

        return arrive

    def choose_gpus(self, rank: Rank) -> None:
        """Show ``rank``, which is running, the GPUs of its environment."""
        rank.set_visible_gpus(self._nodes.gpus_by_choice())
        assert rank.visible_gpus is not None
        rank.visible_gpus.show(self.machine)

    def _settle(self, chosen: Sequence[Rank]) -> None:
        """Restore the state of the process outside, after the ranks have ended."""
        for rank in chosen:
            with suppress(KeyboardInterrupt):
                rank.join(5)
            rank.task = None
            rank.report_remaining()
        if self._current is not None:
            self._current.end_turn()
            self._current.state.leave()
            self._current = None
        self._outside.enter()
        self._nodes.restore()
        self._task_group = None

    def is_idle(self) -> bool:
        """Whether no rank has the turn: each waits, sleeps, or has ended."""
        return self._task_group is None or self._task_group.scheduler.running is None

    def mark_if_deadlocked(self, call: CollectiveCall) -> None:
        """Tell ranks' waiting threads, in their calls' memo, if no rank, thread or timeout can help them."""
        if self._task_group is None:
            call.memo["dead"] = self.deadlock_text(call)
            return
        scheduler = self._task_group.scheduler
        with scheduler:
            scheduler.run_next()
            if scheduler.running is not None or any(rank.asleep is not None for rank in self.ranks):
                return
            if "dead" in call.memo or any(one.waits.has_timeout for one in scheduler.live):
                return
            watching = self.watching.copy()
            ours = {scheduler.caller, *watching, *(rank.thread for rank in self.ranks)}
            ours |= {one.thread for one in scheduler.live}
            # In this order: a thread may be ready and not have noticed yet.
            if turns.has_outside_help(ours) or any(ready() for _, ready in watching.values()):
                return
            text = self.deadlock_text(call)
            for other, _ in watching.values():
                other.memo["dead"] = text

    def _release_or_explain(self, waits: str) -> str | None:
        """Let ranks go on whose host does not wait for NCCL; if there are none, explain the deadlock."""
        standing = [rank.waits for rank in self.ranks if rank.waits is not None and rank.reads is None]
        released = [call for call in standing if call.waits_on_gpu]
        for call in released:
            call.memo["enqueued"] = True
        return None if released else self.deadlock_text(waits)

    def deadlock_text(self, call: object) -> str:
        standings = [find_rank_state(rank) for rank in self.ranks]
        self._waits, self._report = faults.wait_graph(standings), faults.deadlock_report(standings)
        return str(self._report)

    # Closing.

    def close(self) -> None:
        """End the ranks and give torch back as it was."""
        if self.closed:
            return
        self.closed = True
        forget_enqueued(*self.ranks)
        for rank in self.ranks:
            rank.stop()
        self.stores.clear()
        self.kept.clear()
        self.transports.clear()
        self.libraries.close()
        _open.pop(self, None)
        if not _open:
            trace.set_rank_source(None)
            _isolate_threads(False)
        self._restore_machine()

    def _restore_machine(self) -> None:
        self.machine.remove_patches(self._patches)
        self._nodes.close()
        if self._own_machine:
            self.machine.close()

    def __enter__(self) -> World:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def _environment(number: int, size: int, each: int, more: Mapping[str, str] | None) -> dict[str, str]:
    """Return torchrun's variables (torch/distributed/elastic/agent/server/local_elastic_agent.py)."""
    node = number // each
    # With several ranks on a node, torchrun gives each one thread, unless the user sets it (torch/distributed/run.py).
    threads = {"OMP_NUM_THREADS": "1"} if each > 1 and "OMP_NUM_THREADS" not in os.environ else {}
    return {
        "RANK": str(number),
        "LOCAL_RANK": str(number % each),
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(each),
        "GROUP_RANK": str(node),
        "GROUP_WORLD_SIZE": str(size // each),
        "ROLE_RANK": str(number),
        "ROLE_WORLD_SIZE": str(size),
        "ROLE_NAME": "default",
        "MASTER_ADDR": ADDRESS,
        "MASTER_PORT": str(PORT),
        **threads,
        **(more or {}),
    }


def _number_and_clock() -> tuple[int, float] | None:
    rank = current_thread_rank()
    return None if rank is None else (rank.number, rank.clock())
