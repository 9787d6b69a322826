"""Where the ranks of one process meet: who has come to which call of which group, and what happens when all have.

The last that comes does the work for all. So a collective is done when its last member has called it, whatever thread
that was, and the others find it done when it is their turn.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch

from ... import turns
from ..calls import faults, semantics
from ..calls.call import Call
from ..rank.rank import Rank
from .store import shared_by
from .waiting import wait_for

if TYPE_CHECKING:
    from ..group.group import Group
    from .world import World

# A message of up to this many bytes is on its way when its sender goes on, a larger one waits for its receiver: what
# fits into NCCL's buffer of a connection (NCCL_BUFFSIZE, 4 MiB by default).
BUFFER = 4 * 2**20


# As C has them: not watched as the locks are for which a rank hands the baton on.
_acquire, _release = type(threading.Lock()).acquire, type(threading.Lock()).release


class Slot:
    """One collective of one group: the calls of its members, by their rank in the group (of a message: 0 sends).

    done      whether all have come and the values are written.
    met       the clock when the last came, ``last`` its rank; ``finished`` the clock when it was done.
    error     instead of being done, it failed.
    """

    __slots__ = ("calls", "done", "error", "finished", "last", "meeting", "met", "pair", "size")

    def __init__(self, meeting: Meeting | None, size: int, pair: tuple[int, ...] = ()) -> None:
        self.calls: dict[int, Call] = {}
        self.meeting, self.size, self.pair = meeting, size, pair
        self.done = False
        self.met = self.finished = 0.0
        self.last = -1
        self.error: BaseException | None = None

    def is_over(self) -> bool:
        return self.done or self.error is not None

    def stand(self, call: Call, ready: Callable[[], bool], timeout: timedelta | None) -> bool:
        """Wait until ``ready()``; False if time ran out."""
        return wait_for(call, ready, timeout, self.missing)

    def missing(self) -> list[Rank]:
        """The ranks that have not come."""
        here = {call.rank for call in self.calls.values()}
        meeting = self.meeting
        assert meeting is not None
        return [meeting.world.ranks[number] for number in self.pair or meeting.ranks if number not in here]


class Meeting:
    """The calls of one group. All its members share it.

    ranks   the world's ranks that are its members. Those who have not made it yet are taken for the ranks of the same
            numbers, which they are but where a script makes several default groups side by side.
    """

    def __init__(self, world: World, name: str, ranks: Sequence[int], store: object) -> None:
        self.world, self.name, self.ranks, self.store = world, name, tuple(ranks), store
        self._slots: dict[int, Slot] = {}
        # Messages under way, and receivers that wait, of each pair (and tag, where the backend has tags).
        self._sent: dict[Any, deque[Slot]] = {}
        self._asked: dict[Any, deque[Slot]] = {}
        self._lock = threading.Lock()
        # The members' groups, whose numbers are made equal after a run that was broken off: to this or more.
        self.groups: list[Group] = []
        self._latest = 0

    def come(self, call: Call) -> Slot:
        """``call`` has come; the slot is done if it was the last."""
        if call.kind in ("send", "recv"):
            return self._message(call)
        _acquire(self._lock)  # held for a moment: nobody hands the baton on for it
        try:
            slot = self._slots.get(call.seq)
            if slot is None:
                slot = self._slots[call.seq] = Slot(self, len(self.ranks))
            slot.calls[call.at] = call
            if len(slot.calls) == slot.size:
                del self._slots[call.seq]
        finally:
            _release(self._lock)
        first = next(iter(slot.calls.values()))
        if first is not call and not faults.fit(first, call):
            slot.error = faults.fault([slot.calls[at] for at in sorted(slot.calls)])
        elif len(slot.calls) == slot.size:
            # All have come, and perhaps too late by the clocks: NCCL would have ended it before.
            slot.error = faults.late(list(slot.calls.values()))
            if slot.error is None:
                self._finish(slot, semantics_of)
        return slot

    def _finish(self, slot: Slot, compute: Callable[[list[Call]], None]) -> None:
        calls = [slot.calls[at] for at in sorted(slot.calls)]
        started = perf_counter()
        try:
            with Plain():
                compute(calls)
        except Exception as error:
            slot.error = error
        last = max(calls, key=lambda call: call.arrived)
        slot.met, slot.last = last.arrived, last.rank
        slot.finished = slot.met + perf_counter() - started
        slot.done = slot.error is None
        for call in calls:
            call.release()
        if turns.participant() is None:
            turns.something_came()

    # Messages.

    def _message(self, call: Call) -> Slot:
        mine, others = (self._sent, self._asked) if call.kind == "send" else (self._asked, self._sent)
        key = self._key(call)
        with turns.unseen(), self._lock:
            waiting = others.get(key)
            if not waiting and call.kind == "send":
                waiting = others.get((None, *key[1:]))  # a receiver from anybody
            slot = waiting.popleft() if waiting else None
            if slot is None and call.kind == "recv" and call.root is None:
                slot = self._from_anybody(call)
            if slot is None:
                slot = Slot(self, 2, self._pair(call))
                mine.setdefault(key, deque()).append(slot)
        slot.calls[0 if call.kind == "send" else 1] = call
        if len(slot.calls) == 2:
            slot.error = faults.fault([slot.calls[0], slot.calls[1]])
            if slot.error is not None:
                return slot
            self._finish(slot, _deliver)
        elif call.kind == "send" and call.nbytes <= BUFFER:
            with Plain():
                call.inputs = [
                    tensor.clone() for tensor in call.inputs
                ]  # the sender may go on and change them
            call.memo["away"] = True
        return slot

    def _pair(self, call: Call) -> tuple[int, ...]:
        """The sender and the receiver, as the world's ranks; of a receiver from anybody, all."""
        if call.root is None:
            return self.ranks
        there = self.ranks[call.root]
        return (call.rank, there) if call.kind == "send" else (there, call.rank)

    def _key(self, call: Call) -> tuple[Any, ...]:
        tag = call.tag if call.backend == "gloo" else 0
        return (call.at, call.root, tag) if call.kind == "send" else (call.root, call.at, tag)

    def _from_anybody(self, call: Call) -> Slot | None:
        for (_, to, tag), waiting in self._sent.items():
            if waiting and to == call.at and (tag == call.tag or call.backend != "gloo"):
                return waiting.popleft()
        return None

    def pending(self) -> list[Slot]:
        """The collectives to which some have come and not all."""
        return [slot for _, slot in sorted(self._slots.items())]

    def unmet(self) -> list[Call]:
        """The calls to which not all have come."""
        messages = [
            slot for by_pair in (self._sent, self._asked) for waiting in by_pair.values() for slot in waiting
        ]
        slots = [*self.pending(), *messages]
        return [call for slot in slots if not slot.is_over() for call in slot.calls.values()]

    def begin_anew(self) -> None:
        """Forget what nobody will come to any more: the next call of each member meets the next of the others."""
        self._slots.clear()
        self._sent.clear()
        self._asked.clear()
        self._latest = max([self._latest, *(group.latest for group in self.groups)])
        for group in self.groups:
            group.latest = self._latest
            group.pairs.clear()

    def join(self, group: Group, rank: Rank) -> None:
        """A member's own group, before its first call."""
        at = group.rank()
        self.ranks = (*self.ranks[:at], rank.number, *self.ranks[at + 1 :])
        self.groups.append(group)
        group.latest = max(group.latest, self._latest)


class Meetings:
    """The meetings of a world, by what all members of a group know of it."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._known: dict[Any, Meeting] = {}

    def of(self, group: Group, rank: Rank) -> Meeting:
        """The meeting of the group of this name, these ranks and this store that ``rank`` makes: its how manieth is
        counted."""
        shared = shared_by(group.store)
        key = id(shared), group.group_name, group.ranks
        made = rank.made[key] = rank.made.get(key, 0) + 1
        found = self._known.get((key, made))
        if found is None:
            found = self._known[key, made] = Meeting(self._world, group.group_name, group.ranks, shared)
        return found

    def unmet(self) -> list[Call]:
        """The calls to which not all have come."""
        return [call for meeting in self._known.values() for call in meeting.unmet()]

    def begin_anew(self) -> None:
        """After a run that was broken off."""
        for meeting in self._known.values():
            meeting.begin_anew()

    def clear(self) -> None:
        self._known.clear()


def semantics_of(calls: list[Call]) -> None:
    """Write what all members get."""
    for at in range(len(calls)):
        semantics.write(semantics.outputs(calls, at))


def _deliver(calls: list[Call]) -> None:
    send, recv = calls
    semantics.write(list(zip(recv.outputs, send.inputs, strict=True)))


# NCCL writes into memory of which autograd keeps the number of changes, and counts none.
_UNCOUNTED = torch._C.DispatchKeySet(torch._C.DispatchKey.ADInplaceOrView)


class Plain:
    """Inside, tensors are what they are: no mode of this thread, no autograd, and no change is counted."""

    def __enter__(self) -> None:
        self._modes = (
            torch._C.DisableTorchFunction(),
            torch._C._DisableTorchDispatch(),
            torch._C._ExcludeDispatchKeyGuard(_UNCOUNTED),
        )
        for mode in self._modes:
            mode.__enter__()
        self._grad = torch.is_grad_enabled()
        _set_grad_enabled(False)

    def __exit__(self, *exc_info: Any) -> None:
        _set_grad_enabled(self._grad)
        for mode in reversed(self._modes):
            mode.__exit__(*exc_info)


# C's own: torch.no_grad() costs more than a small sum.
_set_grad_enabled: Any = torch._C._set_grad_enabled
