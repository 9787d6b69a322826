"""Waiting for other ranks: a rank hands the baton on; a thread that takes no turns looks now and then."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from datetime import timedelta

from ... import turns
from ...base.language import wrong
from ..calls.call import Call
from ..rank.rank import Rank, rank_here

_LOOK = 0.002  # seconds between two looks of a thread that takes no part
_LONG = 250  # looks after which nobody else can be about to do something
_sleep = time.sleep


def wait_for(
    call: Call, ready: Callable[[], bool], timeout: timedelta | None, missing: Callable[[], Iterable[Rank]]
) -> bool:
    """Return when ``ready()``: others come meanwhile. False if those whom it waits for let ``timeout`` pass.

    Time is that of the ranks' clocks, which run side by side as on real GPUs, however long the turns of the others
    take here. Raises Deadlock when nobody could make it ready.

    missing   the ranks that it waits for; the clocks of those that have ended stand.
    """
    rank, member = rank_here(), turns.participant()
    end = float("inf") if timeout is None or rank is None else rank.clock() + timeout.total_seconds()
    if rank is None:
        raise wrong(RuntimeError, en="this thread is of no rank", zh="这个线程不属于任何 rank")
    if member is None:
        return _watch(rank, call, ready)

    def patience() -> bool:
        return not any(other.clock() >= end for other in missing())

    rank.waits = call
    helpers = rank.world.helpers
    helped = bool(helpers) and any(thread.is_alive() for thread in helpers)
    try:
        limit = None if timeout is None else patience
        member.wait(lambda: ready() or not patience(), call, inside=not helped, patience=limit)
    finally:
        rank.waits = None
    return ready()


def others_first() -> None:
    """Let the others have their turns: a rank may look for what they do again and again."""
    member = turns.participant()
    if member is not None:
        member.wait(lambda: True, "")


def _watch(rank: Rank, call: Call, ready: Callable[[], bool]) -> bool:
    """Wait in a thread that a rank has started: it has no turn, and looks until it is ready."""
    world, idle = rank.world, 0
    world.helpers.add(threading.current_thread())
    while not ready():
        if rank.member is None or world.failed:
            raise SystemExit  # with the run; of a thread nobody is told
        idle = idle + 1 if world.is_idle() else 0
        if idle > _LONG:
            raise turns.Deadlock(world.explain(call))
        _sleep(_LOOK)
    return True
