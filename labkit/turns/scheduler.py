"""The scheduler: which task runs, which runs next, and when all are deadlocked; and a task, which waits and ends."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from enum import Enum, auto
from math import inf
from time import monotonic  # for users' own timeouts alone
from typing import Any, NamedTuple

from ..base.language import say
from .deadlock import Deadlock, deadlock_text, has_outside_help

# The methods of C: a machine that watches locks must not see the scheduler's own.
_acquire, _release = type(threading.Lock()).acquire, type(threading.Lock()).release
_enter, _leave = type(threading.RLock()).acquire, type(threading.RLock()).release

# Seconds after which a waiting task looks again by itself: a thread outside may have helped it unseen.
_POLL_SECONDS = 0.1

# Schedulers in which no task runs.
stalled: set[Scheduler] = set()
# The context that was entered for each scheduler with several tasks.
watched: dict[Scheduler, AbstractContextManager[object]] = {}


class TaskEnded(BaseException):
    """Ends a task whose call was interrupted. ``except Exception`` lets it pass."""


class State(Enum):
    NEW = auto()
    RUNNING = auto()
    WAITING = auto()  # can run once its wait is ready
    READY = auto()  # can run
    OVER = auto()


def never() -> bool:
    """The ``ready`` of a :class:`TaskWait` that no task can end."""
    return False


class TaskWait(NamedTuple):
    """A task's wait, by the arguments of :meth:`ScheduledTask.wait`."""

    ready: Callable[[], bool]
    what: object = ""
    ends: bool = False  # by time, or by a thread that is no task
    lock: int = 0
    inside: bool = False
    patience: Callable[[], bool] | None = None

    @property
    def has_timeout(self) -> bool:
        """Whether the wait ends at some time, whatever other tasks do."""
        return self.ends and self.ready is not never


NOTHING = TaskWait(never)


class Gate:
    """A gate at which a thread sleeps until another opens it. It closes behind each thread that passes."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        _acquire(self._lock)

    def open(self) -> None:
        """Let one thread pass, now or later."""
        with suppress(RuntimeError):  # already open
            _release(self._lock)

    def wait(self, timeout: float | None = None) -> bool:
        """Sleep until the gate is open; return False after ``timeout`` seconds."""
        return _acquire(self._lock, True, -1 if timeout is None else timeout)


class BaseTaskGroup:
    """The tasks of one call, in order. ``caller`` is the task that made the call, if one did."""

    tasks: Sequence[ScheduledTask]
    caller: ScheduledTask | None
    explain: Callable[[str], str | None] | None

    def is_within(self, other: BaseTaskGroup) -> bool:
        """Whether this is ``other``, or a call made by a task within ``other``."""
        return self is other or self.caller is not None and self.caller.group.is_within(other)


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


class ScheduledTask:
    """A task of a :class:`.task_group.TaskGroup`. Its own thread gets it from :func:`current_task`, to wait and to end;
    other threads change it while holding the scheduler's lock.
    """

    def __init__(
        self, group: BaseTaskGroup, scheduler: Scheduler, name: str, begin: Callable[[], object]
    ) -> None:
        self.group, self.scheduler, self.name = group, scheduler, name
        # Starting a thread waits until it runs: not a wait for another task.
        self._begin = keep_turn()(begin)
        self.result: Any = None
        self.failure: BaseException | None = None
        self.state, self.waits = State.NEW, NOTHING
        # An error to raise in the task's thread at its next turn, or when it yields.
        self.error: BaseException | None = None
        # Called in the task's thread at the start of each turn, and inherited by tasks of inner calls.
        self.on_turn: Callable[[], object] | None = None if group.caller is None else group.caller.on_turn
        self.ends_on_yield = False
        # Whether the scheduler has chosen the task and its thread has not woken yet.
        self.woken = False
        self.thread = 0
        self._gate, self._end = Gate(), Gate()

    @property
    def is_over(self) -> bool:
        """Whether the task takes no more turns."""
        return self.state is State.OVER

    @property
    def waits_for(self) -> str:
        """The name of the thing that the task waits for; "" if it does not wait."""
        return str(self.waits.what) if self.state is State.WAITING else ""

    def can_run(self) -> bool:
        """Whether the task could run now."""
        if self.state is State.WAITING:
            return self.waits.ready()
        return self.state in (State.NEW, State.READY)

    def start_turn(self) -> None:
        """Start or wake the task's thread."""
        new, self.state, self.woken = self.state is State.NEW, State.RUNNING, True
        if new:
            self._begin()
        else:
            self._gate.open()

    def finish(self) -> None:
        """Mark the task as over."""
        self.state = State.OVER
        self._end.open()

    def end(self) -> None:
        """Raise :class:`TaskEnded` in the task's thread, unless called from there."""
        ran = self.state is State.RUNNING
        self.error = TaskEnded()
        self.finish()
        self._gate.open()
        if ran and self.thread not in (0, threading.get_ident()):
            self.raise_in_thread(TaskEnded)

    def raise_in_thread(self, kind: type[BaseException]) -> None:
        """Raise ``kind`` in the task's thread, where it runs Python code next."""
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self.thread), ctypes.py_object(kind))

    def join(self, timeout: float | None = None) -> bool:
        """Wait, in a thread that is no task, until the task is over; return False after ``timeout`` seconds."""
        if not self._end.wait(timeout):
            return False
        self._end.open()
        return True

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


class Scheduler:
    """Runs one task at a time: the tasks of a call, and of the calls made by these tasks.

    Change it within ``with scheduler:`` only. A machine that watches locks does not see the scheduler's lock, and an
    interrupt cannot leave it locked.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        # In the order of their turns. The running task is first, unless it has just called others.
        self.live: deque[ScheduledTask] = deque()
        self.running: ScheduledTask | None = None
        self.switches = 0
        # The task that holds each lock that was seen to be taken, by the lock's id.
        self.lock_holders: dict[int, ScheduledTask] = {}
        # The outside thread that made the call, and the tasks it waits for. When these are over, the thread may be
        # about to help the others.
        self.caller = threading.get_ident()
        self.awaited: Sequence[ScheduledTask] = ()
        self._choosing = False

    def __enter__(self) -> None:
        _enter(self._lock)

    def __exit__(self, *exc_info: object) -> None:
        is_done = not self.live
        _leave(self._lock)
        # After the lock is released: a thread that puts patches in or out may be waiting for it.
        if is_done:
            self.unwatch()

    def watch(self, watch: AbstractContextManager[object]) -> None:
        """Enter ``watch`` until no task lives, unless another such context is entered."""
        if self not in watched:
            watch.__enter__()
            watched[self] = watch

    def unwatch(self) -> None:
        """Leave the context that :meth:`watch` entered, once."""
        watch = watched.pop(self, None)
        if watch is not None:
            watch.__exit__(None, None, None)

    def yield_turn(self, task: ScheduledTask, host: BaseTaskGroup | None = None) -> ScheduledTask | None:
        """End the turn of ``task`` and run the next task that can run.

        Return a new task of ``host`` instead of starting its thread: the calling thread runs it.
        """
        if self.running is task:
            self.running = None
            if not task.is_over and self.live[0] is task:
                self.live.rotate(-1)
        if task.is_over and task in self.live:
            self.live.remove(task)
        chosen = self.run_next(host)
        if self.running is None:
            self.check_deadlock()
        return chosen

    def run_next(self, host: BaseTaskGroup | None = None) -> ScheduledTask | None:
        """Unless a task runs, run the first that can; return a new one of ``host``, as :meth:`yield_turn`."""
        if self.running is not None or self._choosing or not self.live:
            return None
        # Before looking: a thread that releases a lock from now on will look again.
        stalled.add(self)
        self._choosing = True
        try:
            chosen = next((task for task in self.live if task.can_run()), None)
        finally:
            self._choosing = False
        if chosen is None:
            return None
        stalled.discard(self)
        self.running = chosen
        self.switches += 1
        self.live.rotate(-self.live.index(chosen))
        if chosen.group is host and chosen.state is State.NEW:
            chosen.state = State.RUNNING
            return chosen
        try:
            chosen.start_turn()
        except Exception as error:  # no thread can be started
            chosen.failure = error
            chosen.finish()
            return self.yield_turn(chosen, host)
        return None

    def end_tasks(self, group: BaseTaskGroup | None = None) -> None:
        """End all tasks, or those of ``group`` and its inner calls. The running task yields."""
        for task in [one for one in self.live if group is None or one.group.is_within(group)]:
            self.live.remove(task)
            task.end()
        if not self.live:
            stalled.discard(self)

    def interrupt_tasks(self) -> None:
        """Raise KeyboardInterrupt in each started task at its next turn; the others never begin."""
        with self:
            for task in tuple(self.live):
                if task.state is State.NEW:
                    self.live.remove(task)
                    task.finish()
                    continue
                # The running task meets the error at its next wait: elsewhere it would interrupt arbitrary code.
                task.error = KeyboardInterrupt()
                if task is not self.running:
                    task.state = State.READY
            self.run_next()

    def interrupt_running(self) -> None:
        """Raise KeyboardInterrupt at once in a running task that has reached no wait since :meth:`interrupt_tasks`."""
        with self:
            running = self.running
            if running is not None and not running.woken and isinstance(running.error, KeyboardInterrupt):
                running.error = None
                running.raise_in_thread(KeyboardInterrupt)

    def end_running(self) -> None:
        """End the running task: others have waited too long."""
        running = self.running
        if running is not None and not running.woken:  # a waking task may be one of the others
            self.running = None
            self.live.remove(running)
            running.end()

    def abort(self) -> None:
        """End all tasks after an interrupt, which may have come anywhere."""
        _enter(self._lock)
        self.awaited = ()
        self.end_tasks()
        self.release_lock()
        self.unwatch()

    def release_lock(self) -> None:
        """Release the lock as often as this thread holds it: an exception may have come between the two calls."""
        with suppress(RuntimeError):
            while True:
                _leave(self._lock)

    def reset_after_fork(self) -> None:
        """Forget the tasks: a forked child lacks their threads, and any of them may have held the lock."""
        self._lock, self.running = threading.RLock(), None
        while self.live:
            self.live.pop().finish()
        self.unwatch()

    def check_deadlock(self) -> None:
        """Raise a deadlock in every waiting task if none can run and no thread outside could change that."""
        if self.running is not None or not self.live or all(one.is_over for one in self.awaited):
            return
        waiting = [one for one in self.live if one.state is State.WAITING]
        if any(one.waits.ends for one in waiting):
            return
        waiting = [one for one in waiting if one.waits.what]
        if not waiting or not self._is_deadlocked(waiting):
            return
        explain = waiting[0].group.explain or deadlock_text
        text = explain(self._describe_waits())
        if text is None:
            self.run_next()  # explain may have released some
            return
        for task in waiting:
            task.error, task.state = Deadlock(text), State.READY
        self.run_next()

    def _is_deadlocked(self, waiting: list[ScheduledTask]) -> bool:
        """Whether each task waits for another of them, or no thread outside could help any."""
        holders = [self.lock_holders.get(one.waits.lock) for one in waiting]
        for_each_other = all(
            holder in self.live and holder is not one for one, holder in zip(waiting, holders, strict=True)
        )
        if for_each_other or all(one.waits.inside for one in waiting):
            return True
        return not has_outside_help({self.caller, threading.get_ident(), *(one.thread for one in self.live)})

    def _describe_waits(self) -> str:
        """Say in a line each who waits for what, and who has ended."""
        lines = []
        for one in (one for group in dict.fromkeys(one.group for one in self.live) for one in group.tasks):
            if one.is_over:
                lines.append(say(en=f"{one.name} has ended", zh=f"{one.name} 已经结束"))
            elif one.waits.what and one.state is State.WAITING:
                holder = self.lock_holders.get(one.waits.lock)
                held = say(en=f", held by {holder.name}", zh=f"（由 {holder.name} 占着）") if holder else ""
                lines.append(say(en=f"{one.name} waits for ", zh=f"{one.name} 在等 ") + one.waits_for + held)
        return "\n".join(f"  {line}" for line in lines)


def wake_stalled() -> None:
    """Run any task whose wait is ready: a thread outside may have released the awaited thing."""
    for scheduler in tuple(stalled):
        with scheduler:
            scheduler.run_next()


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
