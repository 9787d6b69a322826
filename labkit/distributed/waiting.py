"""How a rank waits for others: it hands the baton on; a thread that takes no part looks now and then."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import TYPE_CHECKING

from ..base import turns
from .rank import Rank, rank_here

if TYPE_CHECKING:
    from .call import Call

_LOOK = 0.002  # seconds between two looks of a thread that takes no part
_sleep = time.sleep


def wait_for(
    call: Call, ready: Callable[[], bool], timeout: timedelta | None, missing: Callable[[], Iterable[Rank]]
) -> bool:
    """Return when ``ready()``: others come meanwhile. False if those whom it waits for let ``timeout`` pass.

    Time is that of the ranks' clocks, which run side by side as on real GPUs, however long the turns of the others
    take here. Raises Deadlock when nobody could make it ready.

    missing   for whom it waits; those who have ended are no help, and their clocks stand.
    """
    rank, member = rank_here(), turns.participant()
    end = float("inf") if timeout is None or rank is None else rank.clock() + timeout.total_seconds()
    if member is None or rank is None:
        while not ready():
            _sleep(_LOOK)
        return True

    def patience() -> bool:
        return not any(other.clock() >= end for other in missing())

    rank.waits = call
    helped = rank.world.helpers > 0
    try:
        member.wait(
            lambda: ready() or not patience(),
            f"{call.kind} #{call.seq} of group {call.group} at {call.place}",
            inside=not helped,
            patience=None if timeout is None else patience,
        )
    finally:
        rank.waits = None
    return ready()
