"""Who waits for whom: where each rank stood when none could go on."""

from __future__ import annotations

from dataclasses import dataclass

from ..base.display import Drawn

# What a rank was doing: standing in a call, at its end without an error, at its end with one.
STATES = ("waits", "ended", "failed")


@dataclass(frozen=True)
class Wait:
    """Where one rank stood.

    state      one of STATES.
    call       what it stands in: ``"all_reduce"``, ``"recv"``, ``"store.get"``; of a rank that failed its error's name;
               "" of one that ended.
    waits_for  the ranks that have not come to this call; () of a rank that does not wait.
    group      the name of the process group; "" where it is none.
    sequence   the number of the call in that group, from 1.
    place      the line that it stands at: ``"train.py:31 in step"``.
    """

    rank: int
    state: str = "waits"
    call: str = ""
    waits_for: tuple[int, ...] = ()
    group: str = ""
    sequence: int | None = None
    place: str = ""


@dataclass(frozen=True)
class WaitForGraph(Drawn):
    """Where all ranks stood, in their order. In a notebook it shows itself as a picture of who waits for whom."""

    ranks: tuple[Wait, ...]
