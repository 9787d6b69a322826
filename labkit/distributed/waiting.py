"""How a rank waits for others: it hands the baton on; a thread that takes no part looks now and then."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING

from ..base import turns
from .rank import rank_here

if TYPE_CHECKING:
    from .call import Call

_LOOK = 0.002  # seconds between two looks of a thread that takes no part


def wait_for(call: Call, ready: Callable[[], bool], timeout: timedelta | None = None) -> None:
    """Return when ``ready()``: others come meanwhile. Raises Deadlock when nobody could make it so."""
    rank, member = rank_here(), turns.participant()
    if member is None or rank is None:
        while not ready():
            time.sleep(_LOOK)
        return
    rank.waits = call
    try:
        member.wait(ready, f"{call.kind} #{call.seq} of group {call.group} at {call.place}", inside=True)
    finally:
        rank.waits = None
