"""What is said of a deadlock. (Stand-in, until faults.py is merged.)"""

from __future__ import annotations

from collections.abc import Sequence

from ..base.language import say
from .call import Call
from .rank import Rank


def deadlock(calls: Sequence[Call], ended: Sequence[Rank], waits: str) -> str:
    lines = [f"  rank {c.rank} waits in {c.kind} #{c.seq} of group {c.group} {list(c.shapes)} at {c.place}" for c in calls]
    lines += [f"  {rank.name} has ended" for rank in ended]
    return say(en="deadlock: every rank that is left waits\n", zh="死锁：剩下的 rank 全都在等\n") + "\n".join(lines or [waits])


def tell(slot: object) -> None:
    """Emit the events of a collective that is done. (Stand-in.)"""
