"""The transport between ranks in one process.

The member that comes last computes the results of all members, which find them in their next turn.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import torch

from labkit import turns
from simgpu import hooks

from ..calls import faults, semantics
from ..calls.call import CollectiveCall
from ..group.process_group import SimulatedProcessGroup
from ..group.slot import NCCL_BUFFER, PlainTensors, Slot, first_in_line, join_line, leave_line
from ..rank.enqueued_calls import wait_on_host
from ..rank.rank import Rank, current_thread_rank
from .store import shared_values
from .waiting import wait_for_ranks, yield_turn

# C's own functions: patched locks would yield the turn.
_acquire, _release = type(threading.Lock()).acquire, type(threading.Lock()).release


class ThreadSlot(Slot):
    """A slot of ranks in one process, which can read each other's clocks."""

    __slots__ = ("members", "world")

    def __init__(self, world: Sequence[Rank], members: Sequence[int], pair: tuple[int, ...] = ()) -> None:
        super().__init__(len(pair) or len(members), pair)
        self.world, self.members = world, pair or members

    def wait_for_members(
        self, call: CollectiveCall, ready: Callable[[], bool], timeout: timedelta | None
    ) -> bool:
        return wait_for_ranks(call, ready, timeout, self._missing_ranks)

    def finish(self, write: Callable[[list[CollectiveCall]], None]) -> None:
        super().finish(write)
        if turns.current_task() is None:
            turns.wake_stalled()

    def missing(self) -> list[int]:
        return [rank.number for rank in self._missing_ranks()]

    def _missing_ranks(self) -> list[Rank]:
        here = {call.rank for call in self.calls.values()}
        return [self.world[number] for number in self.members if number not in here]


# With some ranks not running, tensors above this size have no data.
NUMBERS = 2**20


class NotRunning(Exception):
    """A call needs values of ranks that don't run. ``ranks`` must run: none of the others computes the same."""

    def __init__(self, ranks: Sequence[int]) -> None:
        super().__init__(ranks)
        self.ranks = tuple(ranks)


class ThreadTransport:
    """The calls of a group, shared by all members.

    ranks   the global ranks of the members. Before a member has created the group, its rank is assumed to be its
            number; only several default groups side by side have other ranks.
    """

    def __init__(
        self, world: Sequence[Rank], ranks: Sequence[int], store: object, running: Collection[int] | None
    ) -> None:
        self._world, self.ranks = world, tuple(ranks)
        self._running = running
        self._store = store  # kept alive: its id is part of the transport's key
        self._slots: dict[int, ThreadSlot] = {}
        # Sent messages and waiting receivers of each pair (and tag, if the backend has tags).
        self._sent: dict[Any, deque[ThreadSlot]] = {}
        self._asked: dict[Any, deque[ThreadSlot]] = {}
        # Messages of each member to and from another that NCCL has not run, in the order of the calls.
        self._lines: dict[tuple[int, int], deque[CollectiveCall]] = {}
        # Calls of each member that create groups, by the group's number.
        self._made: dict[int, dict[int, CollectiveCall]] = {}
        # Connected members: of the group (None), and of each pair.
        self._connected: dict[frozenset[int] | None, set[int]] = {}
        self._lock = threading.Lock()
        # The members' groups. After a run that was ended early, all get at least this number of calls.
        self._groups: list[SimulatedProcessGroup] = []
        self._latest = 0

    def submit(self, call: CollectiveCall) -> Slot:
        """Add ``call`` to its slot, and complete the slot with the last call."""
        if call.backend == "nccl" and not call.makes_a_group:
            self._connect(call)
        if call.is_message:
            return self._message(call)
        _acquire(self._lock)  # held for a moment, without yielding the turn
        try:
            slot = self._slots.get(call.seq)
            if slot is None:
                running = self._running
                who = self.ranks if running is None else tuple(rank for rank in self.ranks if rank in running)
                slot = self._slots[call.seq] = ThreadSlot(self._world, who)
            slot.calls[call.at] = call
            if len(slot.calls) == slot.size:
                del self._slots[call.seq]
        finally:
            _release(self._lock)
        first = next(iter(slot.calls.values()))
        if slot.error is not None:
            return slot  # later members get the error, too
        with torch._C.DisableTorchFunction():
            others = slot.calls.values() if call.own_group else (first,)
            fits = all(one is call or faults.calls_fit(one, call) for one in others)
        if not fits:
            slot.error = faults.mismatch_error([slot.calls[at] for at in sorted(slot.calls)])
        elif len(slot.calls) == slot.size:
            self._complete(slot)
        return slot

    def _complete(self, slot: ThreadSlot) -> None:
        """Compute a collective that all have joined: now, or after an earlier call that a GPU of theirs has to run."""
        calls = list(slot.calls.values())
        if slot.is_completed() or _waits_for_gpu(calls, lambda: self._complete(slot)):
            return
        # By the clocks, a rank may have called after the first one's timeout: NCCL would have ended the call by then.
        slot.error = faults.late_error(calls) or faults.early_use_error(calls)
        if slot.error is None:
            slot.finish(self._compute)

    def _connect(self, call: CollectiveCall) -> None:
        """Record that the rank of ``call`` has come to the communicator of its group or pair."""
        running = self.ranks if self._running is None else self._running
        every = frozenset(at for at, rank in enumerate(self.ranks) if rank in running)
        pair = frozenset((call.at, call.root)) if call.is_message and call.root is not None else None
        come = self._connected.setdefault(pair, set())
        come.add(call.at)
        if turns.current_task() is not None:  # helper threads have no turn, and wait in wait() only
            call.memo["communicator"] = come, pair or every
        if enqueued := self._world[call.rank].enqueued:
            call.memo["behind"] = tuple(enqueued)

    def flush(self) -> None:
        """Wait for the pending calls of the current rank, except for calls in a deadlock report."""
        rank = current_thread_rank()
        number = None if rank is None else rank.number
        for slot in self._pending_slots():
            for call in [*slot.calls.values()]:
                if call.rank == number and call.backend == "nccl" and not {"away", "told"} & call.memo.keys():
                    slot.wait_for_members(call, slot.is_completed, call.timeout)

    def _compute(self, calls: list[CollectiveCall]) -> None:
        """Write the results of a collective for all members, or of a message."""
        if self._running is not None and calls[0].nbytes > NUMBERS:
            return
        if calls[0].is_message:
            semantics.write_results(calls, 1)
            return
        every = calls
        if self._running is not None:
            of = {call.at: call for call in calls}
            every = [of[max((k for k in of if k <= at), default=min(of))] for at in range(len(self.ranks))]
            root = calls[0].root
            if root is not None and root not in of:
                raise NotRunning((self.ranks[root],))
        try:
            semantics.write_results(every, *(call.at for call in calls))
        except RuntimeError:
            if self._running is None:
                raise
            # In a ring, ranks send different values than their stand-ins.
            raise NotRunning(self.ranks) from None

    def announce(self, call: CollectiveCall) -> list[CollectiveCall]:
        """Return the calls so far that create a group of this number, with ``call``."""
        made = self._made.setdefault(call.seq, {})
        made[call.at] = call
        if any(other.members != call.members for other in made.values()):
            yield_turn()  # the others then announce their members
        return list(made.values())

    # Messages.

    def _message(self, call: CollectiveCall) -> Slot:
        if self._running is not None and not {*call.pair} <= {*self._running}:
            raise NotRunning(self.ranks)
        mine, others = (self._sent, self._asked) if call.kind == "send" else (self._asked, self._sent)
        tag = call.matched_tag
        key = (call.at, call.root, tag) if call.kind == "send" else (call.root, call.at, tag)
        with turns.keep_turn(), self._lock:
            waiting = others.get(key)
            if not waiting and call.kind == "send":
                waiting = others.get((None, *key[1:]))  # a receive from any rank
            slot = waiting.popleft() if waiting else None
            if slot is None and call.root is None:
                slot = self._take_message_to(call)
            if slot is None:
                slot = ThreadSlot(self._world, self.ranks, call.pair)
                mine.setdefault(key, deque()).append(slot)
            slot.calls[0 if call.kind == "send" else 1] = call
            join_line(self._lines, call, slot)
        self._run_message(slot)
        return slot

    def _run_message(self, slot: ThreadSlot) -> None:
        """Run the message of ``slot`` unless an earlier message blocks it, then all messages behind."""
        free = [slot]
        while free:
            slot = free.pop()
            send, calls = slot.calls.get(0), [slot.calls[at] for at in sorted(slot.calls)]
            if len(calls) == 2 and slot.error is None:
                slot.error = faults.mismatch_error(calls)
            ready = len(calls) == 2 and all(first_in_line(call) is call for call in calls)
            if ready and slot.error is None:
                if _waits_for_gpu(calls, partial(self._run_message, slot)):
                    continue
                slot.error = faults.early_use_error(calls)
            if ready or slot.error is not None:
                for call in calls:
                    free += leave_line(call)
                if not slot.is_completed():
                    slot.finish(self._compute)
            elif send is not None and send.nbytes <= NCCL_BUFFER and first_in_line(send) is send:
                if _waits_for_gpu([send], partial(self._run_message, slot)):
                    continue
                if "away" not in send.memo:
                    with PlainTensors():  # the sender may change its tensors
                        send.inputs = [tensor.clone() for tensor in send.inputs]
                    send.memo["away"] = True
                free += leave_line(send)

    def _take_message_to(self, call: CollectiveCall) -> ThreadSlot | None:
        """Return a sent message to the caller, from any sender, or None."""
        for (_, to, tag), waiting in self._sent.items():
            if waiting and to == call.at and tag == call.matched_tag:
                return waiting.popleft()
        return None

    def unmet_calls(self) -> list[CollectiveCall]:
        return [call for slot in self._pending_slots() for call in slot.calls.values()]

    def _pending_slots(self) -> list[ThreadSlot]:
        slots = [slot for _, slot in sorted(self._slots.items())]
        for waiting in (*self._sent.values(), *self._asked.values()):
            slots += waiting
        return [slot for slot in slots if not slot.is_completed()]

    def forget_pending(self) -> None:
        """Forget pending calls, and let each member's next call meet the next of the others."""
        self._slots.clear()
        self._sent.clear()
        self._asked.clear()
        self._lines.clear()
        self._latest = max([self._latest, *(group.latest for group in self._groups)])
        for group in self._groups:
            group.latest = self._latest
            group.pairs.clear()

    def join(self, group: SimulatedProcessGroup, rank: Rank) -> None:
        """Add a member's ``group``, which has made no call yet."""
        at = group.rank()
        self.ranks = (*self.ranks[:at], rank.number, *self.ranks[at + 1 :])
        self._groups.append(group)
        group.latest = max(group.latest, self._latest)


def blocked_half(call: CollectiveCall) -> CollectiveCall | None:
    """Return the half of the message of ``call`` that waits behind another message, or None."""
    slot = call.memo.get("slot")
    halves = [] if slot is None or slot.is_completed() else slot.calls.values()
    return next((half for half in halves if first_in_line(half) is not half), None)


def find_rank_state(rank: Rank) -> faults.RankState:
    """Return the state of ``rank`` for a deadlock report."""
    task, call = rank.task, rank.waits
    if call is None:  # a helper thread of the rank may wait
        waiting = [other for other, _ in rank.world.watching.copy().values()]
        call = next((other for other in waiting if other.rank == rank.number), None)
    if call is not None and (held := blocked_half(call)) is not None:
        call = first_in_line(held) if held.rank == rank.number else call
        call.memo["held"] = held, first_in_line(held)
    reads = rank.reads or ""
    before = next((work.call for work in rank.enqueued if not work.slot.is_completed()), call)
    if call is not None and call.backend == "nccl" and not call.is_message and before is not call:
        reads, call = reads or call.short_place, before  # the GPU waits in the earlier call
    what = "" if task is None or task.is_over or call is not None else task.waits_for
    error = None if rank.error is None else (type(rank.error).__name__, str(rank.error))
    return faults.RankState(
        rank.number, call, what, error, rank.visits.by_place(), dict(rank.seqs), rank.last, rank.passes, reads
    )


def _waits_for_gpu(calls: Sequence[CollectiveCall], again: Callable[[], object]) -> bool:
    """Whether a GPU must run an earlier call before one of ``calls``; then ``again()`` is called afterwards."""
    for call in calls:
        for work in call.memo.get("behind", ()):
            if not work.slot.is_completed():
                work.call.memo.setdefault("then", []).append(again)
                return True
    return False


class ThreadTransports:
    """The transports of a world's groups."""

    def __init__(self, world: Sequence[Rank], running: Collection[int] | None = None) -> None:
        self._world, self._running = world, running
        self._known: dict[Any, ThreadTransport] = {}

    def join(self, group: SimulatedProcessGroup, rank: Rank) -> ThreadTransport:
        """Return the transport of the group that ``rank`` has created, by its name, ranks and store.

        A rank may create several such groups, one after the other: the first of all ranks belong together, and so on.
        """
        shared = shared_values(group.store)
        key = id(shared), group.group_name, group.ranks
        made = rank.made[key] = rank.made.get(key, 0) + 1
        found = self._known.get((key, made))
        if found is None:
            found = self._known[key, made] = ThreadTransport(self._world, group.ranks, shared, self._running)
        found.join(group, rank)
        return found

    def flush(self) -> None:
        """Wait for the pending calls of the current rank in all groups."""
        for transport in tuple(self._known.values()):
            transport.flush()

    def unmet_calls(self) -> list[CollectiveCall]:
        return [call for transport in self._known.values() for call in transport.unmet_calls()]

    def forget_pending(self) -> None:
        """Forget pending calls after a run that was ended early."""
        for transport in self._known.values():
            transport.forget_pending()
        # Later groups are known by these numbers, which must be equal in all ranks.
        worlds = [rank.groups for rank in self._world if rank.groups is not None]
        for one in worlds:
            one.group_count = max(other.group_count for other in worlds)

    def clear(self) -> None:
        self._known.clear()


@hooks.synchronized.add
def _wait_for_calls(_: object) -> None:
    """Wait for all calls of the current rank: NCCL runs them on its own streams, and synchronize() waits for these."""
    if (rank := current_thread_rank()) is not None:
        wait_on_host(rank, rank.world.transports.flush)
