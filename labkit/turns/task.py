"""A task as its own thread uses it: waiting, ending, and the task of the current thread."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf
from time import monotonic  # for users' own timeouts alone
from typing import Any

from .scheduler import (
    NOTHING,
    BaseTask,
    BaseTaskGroup,
    Scheduler,
    State,
    TaskEnded,
    TaskWait,
    never,
    stalled,
    watched,
)

# Seconds after which a waiting task looks again by itself: a thread outside may have helped it unseen.
_POLL_SECONDS = 0.1


class ScheduledTask(BaseTask):
    """A task of a :class:`.task_group.TaskGroup`; its own thread gets it from :func:`current_task`."""

    def __init__(
        self, group: BaseTaskGroup, scheduler: Scheduler, name: str, begin: Callable[[], object]
    ) -> None:
        # Starting a thread waits until it runs: not a wait for another task.
        super().__init__(group, name, keep_turn()(begin))
        self.scheduler = scheduler

    def wait(
        self,
        ready: Callable[[], bool],
        what: object,
        timeout: float | None = None,
        lock: int = 0,
        take: Callable[[], bool] | None = None,
        inside: bool = False,
        patience: Callable[[], bool] | None = None,
    ) -> bool:
        """Yield until ``ready()``; return False after ``timeout`` seconds.

        ready      called by the thread that yields: quick, and never an error.
        what       names the awaited thing in a deadlock's message: "Queue.get at train.py:12"; "" to leave
                   the wait out of it.
        timeout    in seconds. The wait ends at the task's next turn after that.
        lock       the id of the lock that is waited for, if it is one.
        take       takes the thing that is ready; False if a thread outside was quicker. Default: ``ready`` itself.
        inside     only another task can make it ready: no thread outside could help.
        patience   called now and then while another task runs; if it returns False, that task is ended.
        """
        deadline = None if timeout is None else monotonic() + timeout
        try:
            while True:
                self._yield_turn(TaskWait(ready, what, timeout is not None, lock, inside, patience))
                self.sleep(deadline)
                if (take or ready)():
                    return True
                if deadline is not None and monotonic() >= deadline:
                    return False
        finally:
            self.waits = NOTHING  # else the objects that ``ready`` refers to would live until the next wait

    def run_outside(self, function: Callable[[], Any]) -> Any:
        """Return ``function()``, which waits for a thread that is no task; the other tasks run meanwhile."""
        self._yield_turn(TaskWait(never, ends=True))
        try:
            with keep_turn():
                return function()
        finally:
            if isinstance(sys.exc_info()[1], (Exception, type(None))):
                self._rejoin()
            else:
                self._abort()

    def _yield_turn(self, wait: TaskWait) -> None:
        with self.scheduler:
            if self.ends_on_yield and self.error is None:
                self.error = TaskEnded()
            self.raise_error()
            self.state, self.waits = State.WAITING, wait
            self.scheduler.yield_turn(self)

    def _rejoin(self) -> None:
        with self.scheduler:
            if not self.is_over:
                self.state = State.READY
                self.scheduler.run_next()
        self.sleep()

    def sleep(self, deadline: float | None = None) -> None:
        """Sleep until the task's next turn. After ``deadline`` the task can run although its wait is not ready."""
        ends = inf if deadline is None else deadline
        try:
            while not self._gate.wait(
                _POLL_SECONDS if ends == inf else min(_POLL_SECONDS, max(0, ends - monotonic()))
            ):
                with self.scheduler:
                    if monotonic() >= ends:
                        ends = inf
                        if self.state is State.WAITING:
                            self.state = State.READY
                    patience = self.waits.patience
                    if patience is not None and self.state is State.WAITING and not patience():
                        self.scheduler.end_running()
                    self.scheduler.run_next()
                    self.scheduler.check_deadlock()
        except BaseException:
            self._abort()
            raise
        self._begin_turn()
        self.raise_error()

    def enter_thread(self) -> None:
        """Make this thread the task's."""
        with self.scheduler:
            self.thread = threading.get_ident()
            self.raise_error()
        here.task = self
        self._begin_turn()

    def leave_thread(self) -> None:
        """End the task in this thread."""
        here.task = None
        with self.scheduler:
            self.finish()
            self.scheduler.yield_turn(self)

    def _begin_turn(self) -> None:
        if self.on_turn is not None and not self.is_over:
            # As keep_turn() does, without the cost of a context at every switch.
            kept, here.task = here.task, None
            try:
                self.on_turn()
            finally:
                here.task = kept
        self.woken = False

    def _abort(self) -> None:
        """End all tasks: the thread was interrupted while its task was not running."""
        here.task = None
        self.scheduler.abort()

    def raise_error(self) -> None:
        """Raise the error that another thread has left for the task."""
        if self.error is not None:
            error, self.error = self.error, None
            if isinstance(error, TaskEnded):
                here.task = None  # while it unwinds, the thread may take locks like any other
            raise error


class _Here(threading.local):
    """The task of this thread."""

    task: ScheduledTask | None = None
    forking: ScheduledTask | None = None  # while the thread forks


here = _Here()


def current_task() -> ScheduledTask | None:
    """Return the current thread's task, or None."""
    return here.task


@contextmanager
def keep_turn() -> Iterator[None]:
    """Keep the turn inside the context, even while the thread waits."""
    task, here.task = here.task, None
    try:
        yield
    finally:
        here.task = task


def _before_fork() -> None:
    """Keep the turn while this thread forks: IPython joins a thread before, and no other task may fork then."""
    here.forking, here.task = here.task, None


def _after_fork_in_parent() -> None:
    here.task, here.forking = here.forking, None


def _after_fork_in_child() -> None:
    """Forget all tasks: a forked child has this thread alone."""
    task, here.task, here.forking = here.forking, None, None
    stalled.clear()
    for scheduler in {*watched} | ({task.scheduler} if task is not None else set()):
        scheduler.reset_after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child
    )
