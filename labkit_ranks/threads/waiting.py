"""How ranks in one process wait: ranks yield the turn, and threads without turns poll."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from datetime import timedelta

from labkit import turns
from labkit.base.language import wrong

from ..calls.call import CollectiveCall
from ..rank.rank import Rank, current_thread_rank

_LOOK = 0.002  # seconds between two polls of a thread without turns
_LONG = 250  # polls between two deadlock checks
_sleep = time.sleep


def wait_for_ranks(
    call: CollectiveCall,
    ready: Callable[[], bool],
    timeout: timedelta | None,
    missing: Callable[[], Iterable[Rank]],
) -> bool:
    """Wait until ``ready()``, while other ranks run; return False if the missing ranks let ``timeout`` pass.

    Time is that of the ranks' clocks, which run side by side as on real GPUs. Raises Deadlock if no rank can go on.

    missing   returns the ranks to wait for; the clocks of ranks that have ended stand still.
    """
    rank, task = current_thread_rank(), turns.current_task()
    if rank is None:
        raise wrong(RuntimeError, en="this thread is of no rank", zh="这个线程不属于任何 rank")
    if task is None:
        return _wait_by_polling(rank, call, ready, timeout)
    end = float("inf") if timeout is None else rank.clock() + timeout.total_seconds()

    def late() -> bool:
        return any(other.clock() >= end for other in missing())

    def patience() -> bool:
        # Ready: another rank has already reported the timeout, so don't end this rank for it, too.
        return ready() or not late()

    rank.waits = call
    helpers = rank.world.helpers
    helped = bool(helpers) and any(thread.is_alive() for thread in helpers)
    try:
        limit = None if timeout is None else patience
        task.wait(lambda: ready() or late(), call, inside=not helped, patience=limit)
    finally:
        rank.waits = None
    return ready()


def yield_turn() -> None:
    """Let other ranks run, for loops that poll."""
    task = turns.current_task()
    if task is not None:
        task.wait(lambda: True, "")


def _wait_by_polling(
    rank: Rank, call: CollectiveCall, ready: Callable[[], bool], timeout: timedelta | None
) -> bool:
    """Wait in a thread that a rank has started, which has no turn.

    Only time in which no rank has the turn counts: ranks may wait for each other's threads, which have no clocks.
    """
    world, polls = rank.world, 0
    here = threading.get_ident()
    world.helpers.add(threading.current_thread())
    world.watching[here] = call, ready
    try:
        while not ready():
            if rank.task is None or world.failed:
                raise SystemExit  # the run has ended; errors of threads go unseen
            if world.is_idle():
                polls += 1
                if timeout is not None and polls * _LOOK > timeout.total_seconds():
                    return False
                if polls % _LONG == 0:
                    world.mark_if_deadlocked(call)
                if "dead" in call.memo:
                    raise turns.Deadlock(call.memo["dead"])
            _sleep(_LOOK)
    finally:
        del world.watching[here]
    return True
