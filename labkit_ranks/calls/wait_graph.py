"""The wait-for graph of a deadlock: in which call each rank waits, and for which ranks."""

from __future__ import annotations

from dataclasses import dataclass

from labkit.base.display import Drawn
from labkit.base.language import say, series

# A rank waits in a call, has ended without an error, or has ended with one.
STATES = ("waits", "ended", "failed")


@dataclass(frozen=True)
class Wait:
    """The state of one rank.

    state      one of STATES.
    call       the pending call (``"all_reduce"``, ``"recv"``, ``"store.get"``); the name of the error if the rank
               failed.
    waits_for  the ranks that have not come to this call.
    group      the name of the process group, with its ranks unless it is the whole world.
    sequence   the number of the call in that group, from 1.
    place      the line of the call: ``"train.py:31 in step"``.
    """

    rank: int
    state: str = "waits"
    call: str = ""
    waits_for: tuple[int, ...] = ()
    group: str = ""
    sequence: int | None = None
    place: str = ""


@dataclass(frozen=True, repr=False)
class WaitForGraph(Drawn):
    """The states of all ranks, in order. A notebook shows the graph as a picture."""

    ranks: tuple[Wait, ...]

    def __repr__(self) -> str:
        """A line for each rank."""
        return "\n".join(["WaitForGraph:", *(f"  {_format_wait(wait)}" for wait in self.ranks)])


def _format_wait(wait: Wait) -> str:
    number = "" if wait.sequence is None else f" {wait.sequence}"
    call = f" {wait.call}{number}" if wait.call else ""
    zh = f"，组 {wait.group}" if wait.group.endswith("）") else f"（组 {wait.group}）"
    group = say(en=f" of group {wait.group}", zh=zh) if wait.group else ""
    whom = series(wait.waits_for)
    if wait.state == "waits":
        zh = f"在等 rank {whom}，停在" if whom else "停在"
        state = say(en=f"waits for {whom} in" if whom else "waits", zh=zh)
    else:
        state = say(en="ended", zh="已结束") if wait.state == "ended" else say(en="failed", zh="出错")
    return f"rank {wait.rank}  {state}{call}{group}" + (f"  {wait.place}" if wait.place else "")
