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
    device      the device of the event, or the destination of data: ``"cuda:1"``, ``"cpu"``.
    source      the device that data came from; None for events that move none.
    direction   ``"forward"`` or ``"backward"``. The backward of replicate is the sum (reduce_add) of
                gradients onto the source, of scatter a gather, of gather a scatter.
    shapes      shapes of the tensors that moved or went in, e.g. ``((15, 5),)``.
    outputs     shapes of the tensors that came out, if they differ.
    nbytes      bytes moved (0 for computation).
    start       seconds since the recording began; for a rank's events seconds on its clock.
    seconds     the duration.
    name        a module's class, or the kind of a collective, ``"all_reduce"``. May be "".
    call        the number of the data-parallel call, from 0 in each recording; None outside of calls.
    replica     the replica whose piece, weights, computation or output this is; None if there is no single one.
    parent      the call whose replica made ``call``; None for an outer call.
    rank        the rank; None without ranks.

    idle        for a scatter, the devices of the call that get no piece.

    Only for a collective, from the rank's call to its result:

    group       the name of the process group.
    sequence    the number in that group, from 1; of ``send`` and ``recv`` the number between the two ranks.
    ranks       the members of the group; of ``send`` and ``recv`` source and destination; of a pending collective the
                missing members.
    waited      seconds that this rank waited for the last member, in the call or in its ``wait()``.
    last        the rank that came last.
    async_op    whether the rank continued, by ``async_op=True``.
    place       the line of the call: ``"train.py:31 in step"``.
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
    idle: tuple[str, ...] = ()
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

    at = last_arrival  # the former name

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
