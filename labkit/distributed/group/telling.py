"""What a recording is told of collectives."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...trace import emitting as trace
from ...trace.events import Event
from ..calls.call import Call
from ..rank.rank import timed_here
from ..rank.sampling import sample

if TYPE_CHECKING:
    from ..threads.meeting import Slot

# Descriptions of groups that say nothing.
_UNSAID = ("", "default_pg", "undefined")


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
            group=call.group if call.desc in _UNSAID else f"{call.desc} {call.group}",
            async_op=call.async_op,
            sequence=call.seq,
            ranks=slot.pair or call.ranks,
            waited=waited,
            last=slot.last,
            place=call.short_place,
            **call.told,
        )
    )
    rank = timed_here()
    if rank is not None:
        sample(rank, call.kind, call.device if call.told.get("nbytes") else "")
