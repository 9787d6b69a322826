"""Events: something that happened on a device; and meetings: the events of one collective of ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from .memory import MemorySample

# The phases of a data-parallel call; a plain copy between devices; a completed collective of ranks, and one still
# pending when the run ended.
PHASES = ("replicate", "scatter", "parallel_apply", "gather", "copy", "collective", "stuck")
# Messages between two ranks, not collectives of a group.
PAIRS = ("send", "recv")


@dataclass(frozen=True)
class Event:
    """An event on one device.

    phase       one of PHASES. ``parallel_apply`` is the computation of one replica, ``collective`` one rank's part in
                a collective.
    device      where it happened or arrived: ``"cuda:1"``, ``"cpu"``.
    source      where the data came from, for events that move data; else None.
    direction   ``"forward"`` or ``"backward"``. The backward of replicate is the sum (reduce_add) of
                gradients onto the source, of scatter a gather, of gather a scatter.
    shapes      shapes of the tensors that moved or went in, e.g. ``((15, 5),)``.
    outputs     shapes of the tensors that came out, where they differ.
    nbytes      bytes moved (0 for computation).
    start       seconds since the recording began; for a rank's events seconds on its clock.
    seconds     how long it took.
    name        of the thing that ran or moved: a module's class; of a collective its kind, ``"all_reduce"``. May be "".
    call        the data-parallel call it belongs to, counted from 0 in each recording; None outside of calls.
    replica     the replica whose piece, weights, computation or output it is; None where it is not one replica's.
    parent      the call in one of whose replicas ``call`` was made; None for a call that is in no other.
    rank        the rank that it happened on; None where no ranks run.

    Of a collective, which begins when the rank calls it and ends when it has its result:

    group       the name of the process group.
    sequence    its number in that group, from 1; of ``send`` and ``recv`` the number between these two ranks.
    ranks       the members of the group; of ``send`` and ``recv`` the source and the destination; where it is stuck,
                those that had not come.
    waited      seconds that this rank stood still until the last member came, in the call or in its ``wait()``.
    last        the rank that came last.
    async_op    whether the rank went on meanwhile, as ``async_op=True`` asks.
    place       the line that called it: ``"train.py:31 in step"``.
    """

    phase: str
    device: str
    source: str | None = None
    direction: str = "forward"
    shapes: tuple[tuple[int, ...], ...] = ()
    outputs: tuple[tuple[int, ...], ...] = ()
    nbytes: int = 0
    start: float = 0.0
    seconds: float = 0.0
    name: str = ""
    call: int | None = None
    replica: int | None = None
    parent: int | None = None
    rank: int | None = None
    group: str = ""
    sequence: int | None = None
    ranks: tuple[int, ...] = ()
    waited: float = 0.0
    last: int | None = None
    async_op: bool = False
    place: str = ""

    @property
    def stop(self) -> float:
        """When it ended, by the clock of ``start``."""
        return self.start + self.seconds

    @property
    def meeting(self) -> tuple[object, ...]:
        """The key shared by the events of one collective, over all members."""
        return self.group, self.name in PAIRS, self.ranks, self.sequence


@dataclass(frozen=True)
class Meeting:
    """A collective: the events of its members, in the order of ranks. A trace may have only some of them."""

    parts: tuple[Event, ...]

    @property
    def kind(self) -> str:
        """The kind of collective, ``"all_reduce"``; for a message ``"send"``."""
        return self.parts[0].name if self.parts[0].name not in PAIRS else PAIRS[0]

    @property
    def last_arrival(self) -> float:
        """The time when the last member arrived."""
        return max(part.start + part.waited for part in self.parts)

    @property
    def stop(self) -> float:
        """The time when the last member had its result."""
        return max(part.stop for part in self.parts)

    @property
    def last(self) -> int | None:
        """The rank that came last."""
        return self.parts[0].last


def devices_of(events: Iterable[Event]) -> tuple[str, ...]:
    """Return the devices that occur, the CPU first, then GPUs by number."""
    names = {name for event in events for name in (event.device, event.source) if name}
    return tuple(sorted(names, key=lambda name: (name != "cpu", int(name.partition(":")[2] or 0))))


def ranks_of(found: Iterable[Event | MemorySample]) -> tuple[int, ...]:
    """Return the ranks that occur; () without ranks."""
    return tuple(sorted({one.rank for one in found if one.rank is not None}))


def meetings_of(events: Iterable[Event]) -> tuple[Meeting, ...]:
    """Return the collectives of ranks in ``events``, by the arrival of their last members."""
    parts: dict[tuple[object, ...], list[Event]] = {}
    for event in events:
        if event.phase == "collective":
            parts.setdefault(event.meeting, []).append(event)
    found = [Meeting(tuple(sorted(group, key=lambda part: part.rank or 0))) for group in parts.values()]
    return tuple(sorted(found, key=lambda meeting: meeting.last_arrival))


class First(list[Any]):
    """Keeps the first ``most`` items that are appended. ``see`` is given every item, and whether it was kept."""

    def __init__(self, most: int, see: Callable[[Any, bool], None]) -> None:
        super().__init__()
        self._most, self._see = most, see

    def append(self, found: Any) -> None:
        keeps = len(self) < self._most
        self._see(found, keeps)
        if keeps:
            super().append(found)
