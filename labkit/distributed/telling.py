"""What is said of a deadlock. (Stand-in, until faults.py is merged.)"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..base.language import say
from ..trace import events as trace
from ..trace.events import Event
from .call import Call
from .rank import Rank

if TYPE_CHECKING:
    from .meeting import Slot


def deadlock(calls: Sequence[Call], ended: Sequence[Rank], waits: str) -> str:
    lines = [
        f"  rank {c.rank} waits in {c.kind} #{c.seq} of group {c.group} {list(c.shapes)} at {c.place}"
        for c in calls
    ]
    lines += [f"  {rank.name} has ended" for rank in ended]
    return say(en="deadlock: every rank that is left waits\n", zh="死锁：剩下的 rank 全都在等\n") + "\n".join(
        lines or [waits]
    )


def tell(call: Call, slot: Slot, waited: float) -> None:
    """Emit the event of one rank's part in a collective, which has its result now.

    waited   seconds that it stood still until the last member came.
    """
    if trace.recording is None:
        return
    trace.emit_at(
        Event(
            "collective",
            call.device,
            direction="backward" if call.backward else "forward",
            start=call.arrived,
            seconds=max(slot.finished - call.arrived, 0.0),
            name=call.kind,
            rank=call.rank,
            group=call.group,
            sequence=call.seq,
            ranks=slot.pair or call.ranks,
            waited=waited,
            last=slot.last,
            place=call.short_place,
            **call.told,
        )
    )
