"""Waiting for other ranks: a rank hands the baton on; a thread that takes no turns looks now and then."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from datetime import timedelta

from labkit import turns
from labkit.base.language import wrong

from ..calls.call import CollectiveCall
from ..rank.rank import Rank, current_thread_rank

_LOOK = 0.002  # seconds between two looks of a thread that takes no part
_LONG = 250  # looks between two of whether anybody could still help
_sleep = time.sleep


def wait_for_ranks(
    call: CollectiveCall,
    ready: Callable[[], bool],
    timeout: timedelta | None,
    missing: Callable[[], Iterable[Rank]],
) -> bool:
    """Return when ``ready()``: others come meanwhile. False if those whom it waits for let ``timeout`` pass.

    Time is that of the ranks' clocks, which run side by side as on real GPUs, however long the turns of the others
    take here. Raises Deadlock when nobody could make it ready.

    missing   the ranks that it waits for; the clocks of those that have ended stand.
    """
    rank, task = current_thread_rank(), turns.current_task()
    end = float("inf") if timeout is None or rank is None else rank.clock() + timeout.total_seconds()
    if rank is None:
        raise wrong(RuntimeError, en="this thread is of no rank", zh="这个线程不属于任何 rank")
    if task is None:
        return _wait_by_polling(rank, call, ready, timeout)

    def late() -> bool:
        return any(other.clock() >= end for other in missing())

    def patience() -> bool:
        # Where it is ready, another has just told of the time that is over, and is not to be ended for it.
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
    """Let the others have their turns: a rank may look for what they do again and again."""
    task = turns.current_task()
    if task is not None:
        task.wait(lambda: True, "")


def _wait_by_polling(
    rank: Rank, call: CollectiveCall, ready: Callable[[], bool], timeout: timedelta | None
) -> bool:
    """Wait in a thread that a rank has started: it has no turn, and looks until it is ready.

    Its time is that in which no rank has its turn: they may wait for each other's threads, whose time no clock has.
    """
    world, stood = rank.world, 0
    here = threading.get_ident()
    world.helpers.add(threading.current_thread())
    world.watching[here] = call, ready
    try:
        while not ready():
            if rank.task is None or world.failed:
                raise SystemExit  # with the run; of a thread nobody is told
            if world.is_idle():
                stood += 1
                if timeout is not None and stood * _LOOK > timeout.total_seconds():
                    return False
                if stood % _LONG == 0:
                    world.mark_if_deadlocked(call)
                if "dead" in call.memo:
                    raise turns.Deadlock(call.memo["dead"])
            _sleep(_LOOK)
    finally:
        del world.watching[here]
    return True
