"""Threads on the simulated machine: every new one sees the machine, and replicas take turns.

PyTorch runs the replicas of a data-parallel call in threads that race. Here, threads started and joined by a function
named ``parallel_apply`` (PyTorch's, or a copy of it) run one at a time in a fixed order (see :mod:`labkit.turns`), so
that their output is the same every time. labkit's engine asks for turns itself.

Where Python's locks cannot be watched (:mod:`labkit.turns.locks`), replicas race: otherwise they could hang.
"""

from __future__ import annotations

import _thread
import ctypes
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache, partial
from types import FrameType
from typing import Any

from labkit import turns
from labkit.base.patches import Patch
from labkit.turns.locks import lock_patches, lock_watch

from .. import hooks
from .current_machine import call_with_machine, machine_in_use
from .gpu import TheMachine

# Options of glibc's malloc (malloc.h), with their values.
_KEEPING = {
    -8: 1,  # M_ARENA_MAX: new threads reuse the warm memory of old ones
    -1: 64 * 2**20,  # M_TRIM_THRESHOLD: keep this many freed bytes for the next call
    -3: 4 * 2**20,  # M_MMAP_THRESHOLD: return larger blocks at once, which would fragment the rest
}


@cache
def keep_memory_warm() -> None:
    """Let glibc's malloc keep the freed memory of replicas for the next call.

    By default, memory goes back to the system and a new thread's arena starts cold, so that each buffer of a replica
    costs page faults: a forward pass of 12 ms took 18 to 20 in a new thread, copying a small model's weights to 7 GPUs
    1.3 ms instead of 0.2. Replicas take turns, so they do not contend for one arena. A choice made in the environment
    is respected.
    """
    chosen = any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ)
    if chosen or not sys.platform.startswith("linux"):
        return
    with suppress(OSError, AttributeError):  # another C library: nothing to gain
        for option, value in _KEEPING.items():
            ctypes.CDLL(None).mallopt(option, value)


@hooks.patches.add
def patches(machine: TheMachine) -> Iterator[Patch]:
    """Let new threads see the machine and, unless ``order="threads"``, replicas take turns."""
    yield from _entering()
    if _takes_turns(machine):
        yield from _turns_of_threads(partial(turns.TaskGroup, order=machine.order, watch=lock_watch))  # type: ignore[arg-type]


def _takes_turns(machine: Any) -> bool:
    return machine.order != "threads" and bool(lock_patches())


@turns.task_group_factories.append
def _task_group_here(names: Sequence[str]) -> turns.TaskGroup | None:
    machine = machine_in_use()
    if machine is None or not _takes_turns(machine):
        return None
    return turns.TaskGroup(names, order=machine.order, watch=lock_watch)  # type: ignore[arg-type]  # not "threads"


def _entering() -> Iterator[Patch]:
    """Let every new thread see the machine in use."""

    def start_new(real: Any, function: Callable[..., Any], args: Any, kwargs: Any = None) -> Any:
        return real(call_with_machine, (function, *args), kwargs or {})

    yield Patch.wrap(threading.Thread, "_bootstrap_inner", call_with_machine)
    yield Patch.wrap(_thread, "start_new_thread", start_new)


class _Call(threading.local):
    """The ``parallel_apply`` starting threads on this thread, until the first join."""

    frame: FrameType | None = None
    task_group: turns.TaskGroup | None = None


def _turns_of_threads(new_task_group: Callable[[], turns.TaskGroup]) -> Iterator[Patch]:
    """Let the threads that a ``parallel_apply`` starts and joins take turns."""
    start, join = threading.Thread.start, threading.Thread.join
    call, here = _Call(), turns.here

    def start_in_turn(self: threading.Thread) -> None:
        caller = sys._getframe(1)
        if caller.f_code.co_name != "parallel_apply" or "join" not in caller.f_code.co_names:
            with turns.keep_turn():  # waiting for a thread to start is no wait for another replica
                start(self)
            return
        if call.task_group is None or call.frame is not caller:
            call.frame, call.task_group = caller, new_task_group()
        # The thread starts at its turn: after the first join, when all threads are known.
        at, device = len(call.task_group.tasks), _argument(self, "device")
        where = f"cuda:{device}" if isinstance(device, int) else device
        name = f"replica {at} on {where}" if where else f"replica {at}"
        self._labkit_turn = call.task_group, call.task_group.add(name, partial(begin, self))

    def begin(self: threading.Thread) -> None:
        task_group, task = self._labkit_turn
        run = self.run

        def run_in_turn() -> None:
            # Break the cycle between the thread and this function, so that both die without the garbage collector.
            del self.run
            task_group.run_task(task, run)

        self.run = run_in_turn  # type: ignore[method-assign]
        start(self)

    def join_in_turn(self: threading.Thread, timeout: float | None = None) -> None:
        task_group, task = self.__dict__.get("_labkit_turn", (None, None))
        if task_group is None:
            if here.task is None or not self.is_alive() or self is threading.current_thread():
                return join(self, timeout)
            if timeout is None:
                here.task.run_outside(partial(join, self))
            else:
                here.task.wait(lambda: not self.is_alive(), "", timeout)
            return None
        if call.task_group is task_group:
            call.frame = call.task_group = None
        task_group.start()
        if task_group.wait_for(task, timeout):
            if task.failure is not None:
                raise task.failure
            with turns.keep_turn():
                join(self)

    yield Patch(threading.Thread, "start", start_in_turn)
    yield Patch(threading.Thread, "join", join_in_turn)


def _argument(thread: threading.Thread, name: str) -> Any:
    """Return the argument ``name`` of the function of ``thread``; None if missing."""
    code = getattr(getattr(thread, "_target", None), "__code__", None)
    return None if code is None else dict(zip(code.co_varnames, thread._args, strict=False)).get(name)
