"""A group of tasks: several functions called in turn, one at a time, in a fixed order; without a machine they race."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

from .scheduler import BaseTaskGroup, ScheduledTask, Scheduler, State, TaskEnded, TaskWait, here

# Seconds for an interrupted task to reach a wait, where the interrupt is raised.
_INTERRUPT_SECONDS = 0.5
_NO_WATCH = nullcontext()


class TaskGroup(BaseTaskGroup):
    """The tasks of a call. One runs at a time.

    names      of the tasks, for messages.
    order      who goes first, second, …, by number; default: as given. Numbers too large are left out.
    watch      a context entered while several tasks take turns, which makes them say when they wait. Must be reentrant.
    explain    the text of a deadlock, given the waits in lines; default: that each waits for another. None instead of a
               text means that another process may still help: the scheduler asks again soon.

    The next task in the order that can run runs next, and after the last one the first again::

        def first():                      # first   a───╮   (waits)           ╭───d
            print("a")                    # second      ╰───b───╮             │
            task = current_task()         # third               ╰───c─────────╯
            task.wait(lambda: box, "the box")
            print("d")
        def second(): print("b"); box.append(1)
        def third(): print("c")

        TaskGroup(["first", "second", "third"]).run([first, second, third])     # prints a b c d

    A task that runs a group of its own waits until that is over; its tasks take their turns before the next one here.
    """

    def __init__(
        self,
        names: Sequence[str] = (),
        order: Sequence[int] | None = None,
        watch: AbstractContextManager[object] = _NO_WATCH,
        explain: Callable[[str], str | None] | None = None,
    ) -> None:
        self._order, self._watch = order, watch
        self.explain = explain
        # Whether to raise an interrupt of the caller in each task first, and whether that has happened.
        self.passes_interrupts = self.interrupted = False
        self.caller: ScheduledTask | None = here.task
        self._is_started = False
        self.scheduler = self.caller.scheduler if self.caller is not None else Scheduler()
        self.tasks: list[ScheduledTask] = []
        for name in names:
            self.add(name)

    def add(self, name: str, begin: Callable[[], object] | None = None) -> ScheduledTask:
        """Add a task; at its first turn ``begin()`` starts a thread, which calls :meth:`run_task`."""
        task = ScheduledTask(self, self.scheduler, name, begin or (lambda: self._start_thread(task)))
        self.tasks.append(task)
        return task

    def run(
        self,
        functions: Sequence[Callable[[], Any]],
        context: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> list[Any]:
        """Call a function for each task and return the results.

        Functions run in the caller's thread until one has to wait, the rest in threads, within ``context()``: a fresh
        thread has cold caches, and OpenMP gives it a new pool. An error in a function, or an interrupt of the caller,
        ends the other tasks and is raised here.
        """
        tasks = list(self.tasks)
        self._functions, self._context = dict(zip(tasks, functions, strict=True)), context
        try:
            if self.caller is None:
                self.scheduler.awaited = tasks
            first = self._run_first()
            if first is not None:
                self._run_tasks(first, self.caller)
            for task in tasks:
                self.wait_for(task)
            failure = next((one.failure for one in tasks if one.failure is not None), None)
            if failure is not None:
                raise failure
            return [task.result for task in tasks]
        except BaseException:
            if self.caller is None:
                self.scheduler.abort()
            raise
        finally:
            # Break cycles of failures, frames, tasks and group: tensors would wait for the garbage collector.
            for task in tasks:
                task.failure = task.result = None
            failure, tasks, self._functions = None, [], {}
            self.tasks.clear()

    def start(self) -> None:
        """Run the first of the tasks added so far, once."""
        if not self._is_started:
            first = self._run_first()
            if first is not None:
                with self.scheduler:
                    first.state = State.NEW
                    first.start_turn()

    def wait_for(self, task: ScheduledTask, timeout: float | None = None) -> bool:
        """Wait until ``task`` is over; return False after ``timeout`` seconds. An interrupt ends all tasks."""
        parent, scheduler = self.caller, self.scheduler
        if parent is not None and parent is here.task:
            return task.is_over or parent.wait(lambda: task.is_over, "", timeout)
        try:
            while True:
                try:
                    with scheduler:
                        scheduler.awaited = [task] if timeout is None else ()
                        scheduler.check_deadlock()
                    if not self.interrupted or timeout is not None:
                        return task.join(timeout)
                    while not task.join(_INTERRUPT_SECONDS):
                        scheduler.interrupt_running()
                    return True
                except KeyboardInterrupt:
                    if not self.passes_interrupts or self.interrupted:
                        raise
                    self.interrupted = True
                    scheduler.interrupt_tasks()
        except BaseException:
            scheduler.abort()
            raise
        finally:
            scheduler.awaited = ()
            if self._is_over():
                self.tasks.clear()

    def run_task(self, task: ScheduledTask, function: Callable[[], Any]) -> None:
        """Call ``function`` as ``task``, in the task's own thread."""
        with suppress(TaskEnded):
            try:
                task.enter_thread()
                function()
            finally:
                self.scheduler.release_lock()
                task.leave_thread()

    def _run_first(self) -> ScheduledTask | None:
        """Make the first task the running one and return it."""
        self._is_started = True
        ordered = self.tasks
        if self._order is not None:
            ordered = [self.tasks[at] for at in self._order if at < len(self.tasks)]
        if len(ordered) > 1:
            self.scheduler.watch(self._watch)
        with self.scheduler:
            if self.caller is not None:
                self.caller.raise_error()
            self.scheduler.live.extendleft(reversed(ordered))
            for first in ordered[:1]:
                self.scheduler.running = first
                first.state = State.RUNNING
                return first
        return None

    def _start_thread(self, task: ScheduledTask) -> None:
        """Start a thread that calls the function of ``task``."""
        threading.Thread(target=self._run_in_thread, args=(task,), name=task.name, daemon=True).start()

    def _run_in_thread(self, task: ScheduledTask) -> None:
        with suppress(TaskEnded):
            self._run_tasks(task, None, self._context)

    def _run_tasks(
        self,
        first: ScheduledTask,
        parent: ScheduledTask | None,
        context: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        """Run ``first`` in the current thread, and then each next task that has not begun."""
        if parent is not None:
            parent.state, parent.waits = State.WAITING, TaskWait(self._is_over)
        task: ScheduledTask | None = first
        while task is not None:
            try:
                task.enter_thread()
                with context():
                    task.result = self._functions[task]()
            except TaskEnded:
                pass
            except BaseException as error:
                task.failure = error
            here.task = parent if parent is not None and not parent.is_over else None
            with self.scheduler:
                task.finish()
                if task.failure is not None:
                    self.scheduler.end_tasks(self)
                task = self.scheduler.yield_turn(task, host=self)
        if parent is not None:
            parent.sleep()

    def _is_over(self) -> bool:
        """Whether every task is over."""
        return all(task.state is State.OVER for task in self.tasks)


# (names) -> the group in which functions that are called together take turns; None: they race.
task_group_factories: list[Callable[[Sequence[str]], TaskGroup | None]] = []


def run_together(
    names: Sequence[str],
    functions: Sequence[Callable[[], Any]],
    context: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> list[Any]:
    """Call each of ``functions`` in a new thread, within ``context()``, and return their results.

    They race, as on real GPUs, unless one of :data:`task_group_factories` gives a group, as a simulated machine does.
    The first error is raised here when all have ended.
    """
    for new_group in task_group_factories:
        if (group := new_group(names)) is not None:
            return group.run(functions, context)
    results: list[Any] = [None] * len(functions)
    failures: dict[int, BaseException] = {}

    def call(at: int) -> None:
        try:
            with context():
                results[at] = functions[at]()
        except BaseException as error:
            failures[at] = error

    threads = [threading.Thread(target=call, args=(at,), name=name) for at, name in enumerate(names)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        try:
            raise failures[min(failures)]
        finally:
            failures.clear()  # tracebacks hold this frame
    return results
