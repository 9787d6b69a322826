"""A cooperative scheduler for threads: of several tasks one runs at a time, in a fixed order.

Replicas race on real GPUs. A simulated machine runs them one after another, so that a script prints the same every
time. A task runs until it ends or has to wait (for a lock, a queue, a barrier). Then it yields, and the scheduler runs
the next task in the order that can continue. No clock decides: a task waits when it says so
(:meth:`.scheduler.ScheduledTask.wait`), and a simulated machine makes Python's locks and queues do that
(:mod:`.locks`).

When every task waits and no other thread could help, each gets a :class:`Deadlock` that names who waits where. When the
caller is interrupted, all tasks end, so that none is left for a later call to wait for.
"""

from .deadlock import Deadlock, has_outside_help
from .scheduler import (
    ScheduledTask,
    Scheduler,
    TaskEnded,
    current_task,
    here,
    keep_turn,
    stalled,
    wake_stalled,
)
from .task_group import TaskGroup, run_together, task_group_factories

__all__ = [
    "Deadlock", "ScheduledTask", "Scheduler", "TaskEnded", "TaskGroup", "current_task", "has_outside_help", "here",
    "keep_turn", "run_together", "stalled", "task_group_factories", "wake_stalled",
]  # fmt: skip
