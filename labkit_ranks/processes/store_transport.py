"""The transport between processes: each call, with the values of its inputs, is a value in the group's store.

A member completes a call when it looks for it and finds the calls of all members. It computes its own results by
:mod:`..calls.semantics`, in the same order as ranks in one process, and so gets the same bits.
"""

from __future__ import annotations

import os
import pickle
import threading
from collections import Counter, deque
from collections.abc import Callable
from datetime import timedelta

from torch._C._distributed_c10d import PrefixStore
from torch.distributed import DistBackendError, DistNetworkError

from labkit import turns
from labkit.base.language import say
from simgpu import hooks

from ..calls import faults, semantics
from ..calls.call import CollectiveCall
from ..group.process_group import SimulatedProcessGroup
from ..group.slot import NCCL_BUFFER, PlainTensors, Slot, first_in_line, join_line, leave_line
from .call_packing import pack
from .deadlock_detector import GRACE, NEW, active_detector, start_detector
from .store_keys import delete_value, read_values, sleep, write_value

# Seconds for others to announce their groups after two groups have differed.
_SOON = 1.0

_made: Counter[tuple[int, ...]] = Counter()


class ProcessSlot(Slot):
    """A call of this process.

    key     the key of a message, or the beginning of those of a collective; "" for a message from any rank.
    packed  a message that waits to be sent.
    """

    __slots__ = ("call", "key", "packed", "transport")

    def __init__(self, transport: StoreTransport, call: CollectiveCall, key: str) -> None:
        super().__init__(transport.size, call.pair if call.is_message else ())
        self.transport, self.call, self.key = transport, call, key
        self.packed: bytes | None = None

    def is_completed(self) -> bool:
        """Whether the call is completed, after a look for the others; that sends a message if nothing blocks it."""
        with turns.keep_turn(), self.transport.lock, PlainTensors():
            if not super().is_completed():
                self.transport.advance(self)
            return super().is_completed()

    def wait_for_members(
        self, call: CollectiveCall, ready: Callable[[], bool], timeout: timedelta | None
    ) -> bool:
        with turns.keep_turn():
            try:
                return self.transport.detector.wait(call, ready, timeout)
            except DistNetworkError as error:  # the process with the store is gone without a report
                sleep(GRACE)
                en = f"{call.kind} #{call.seq} at {call.place}: another rank's process is gone"
                zh = f"{call.kind} #{call.seq}（{call.place}）：另一个 rank 的进程已经不在了"
                raise DistBackendError(say(en=en, zh=zh) + f"\n{error}") from error

    def missing(self) -> list[int]:
        return self.transport.missing_ranks(self)


class StoreTransport:
    """The transport of a group between processes. All members create it at the same time."""

    def __init__(self, group: SimulatedProcessGroup) -> None:
        self.size, self.at, self.ranks = group.size(), group.rank(), group.ranks
        self.detector = start_detector(group)
        _made[self.ranks] += 1
        name = f"{'-'.join(map(str, self.ranks))}/{_made[self.ranks]}"
        self._store = PrefixStore(name, self.detector.store)
        self.lock = threading.RLock()
        # Messages of this rank to and from each other member that NCCL has not run.
        self._lines: dict[tuple[int, int], deque[CollectiveCall]] = {}
        self._messages: Counter[str] = Counter()
        self._wait_for_members(group, name)

    def _wait_for_members(self, group: SimulatedProcessGroup, name: str) -> None:
        """Wait until all members make the group."""
        call = CollectiveCall(NEW)
        call.group, call.seq, call.at, call.rank, call.ranks = (
            name,
            1,
            self.at,
            self.ranks[self.at],
            self.ranks,
        )
        call.locate()
        slot = self._start(call, "members")
        if not slot.is_completed() and not slot.wait_for_members(call, slot.is_completed, group.timeout):
            raise faults.timeout_error(call, group.timeout, slot.missing())

    def submit(self, call: CollectiveCall) -> Slot:
        """Add ``call``, and bring it to the other members."""
        call.node = int(os.environ.get("GROUP_RANK", "0"))  # two nodes each have a cuda:0
        return self._start(call, self._message_key(call) if call.is_message else f"all/{call.seq}")

    def _start(self, call: CollectiveCall, key: str) -> ProcessSlot:
        slot = ProcessSlot(self, call, key)
        with turns.keep_turn(), self.lock, PlainTensors():
            self.detector.record_call(call, slot)
            packed = pack(call, values=True)
            if call.is_message:
                slot.packed = packed
                join_line(self._lines, call, slot)
            else:
                write_value(self._store, f"{key}/{self.at}", packed)
        slot.is_completed()
        return slot

    def flush(self) -> None:
        """Wait for the pending calls of this rank."""
        for slot in tuple(self.detector.pending):
            if slot.transport is self and slot.call.backend == "nccl":
                slot.wait_for_members(slot.call, slot.is_completed, slot.call.timeout)

    def announce(self, call: CollectiveCall) -> list[CollectiveCall]:
        """Return the calls so far for a group of this number, with ``call``."""
        made = PrefixStore(f"made/{call.seq}", self._store)
        with turns.keep_turn():
            write_value(made, str(self.at), pack(call))
            first = made.compare_set("first", "", str(self.at)).decode()
            calls = [call, pickle.loads(read_values(made, [first])[0])]
            if calls[1].members != call.members:
                sleep(_SOON)
                keys = [str(at) for at in range(self.size) if made.check([str(at)])]
                calls = list(map(pickle.loads, read_values(made, keys)))
        return calls

    def advance(self, slot: ProcessSlot) -> None:
        """Complete the call of ``slot`` if the others have come to it; send a message that nothing blocks."""
        if not slot.call.is_message:
            self._meet(slot)
        elif first_in_line(slot.call) is slot.call:
            (self._send if slot.call.kind == "send" else self._receive)(slot)

    def missing_ranks(self, slot: ProcessSlot) -> list[int]:
        """Return the ranks that have not come to the call of ``slot``."""
        if slot.call.is_message:
            return [rank for rank in slot.pair if rank != slot.call.rank]
        return [rank for at, rank in enumerate(self.ranks) if not self._store.check([f"{slot.key}/{at}"])]

    def _meet(self, slot: ProcessSlot) -> None:
        keys = [f"{slot.key}/{at}" for at in range(self.size)]
        if not self._store.check(keys):
            return
        values = read_values(self._store, keys)
        if self._store.add(f"{slot.key}/read", 1) == self.size:  # the last reader
            for key, value in zip(keys, values, strict=True):
                delete_value(self._store, key, value)
            self._store.delete_key(f"{slot.key}/read")
        calls: list[CollectiveCall] = list(map(pickle.loads, values))
        calls[self.at].outputs = slot.call.outputs
        self._complete(slot, calls, self.at)

    def _complete(self, slot: ProcessSlot, calls: list[CollectiveCall], at: int) -> None:
        """Complete a call, number ``at`` among those of all members, or end it with their error."""
        behind = leave_line(slot.call)
        slot.calls = dict(enumerate(calls))
        slot.error = faults.mismatch_error(calls)
        if slot.error is None:
            slot.finish(lambda calls: semantics.write_results(calls, at))
        del self.detector.pending[slot]
        slot.call.release()
        self.detector.publish_progress()
        for other in behind:
            other.is_completed()

    # Messages.

    def _message_key(self, call: CollectiveCall) -> str:
        """Return the key of a message, which has a number among those of its pair and tag; "" if any rank sends it."""
        if call.root is None:
            return ""
        sender, receiver = (call.at, call.root) if call.kind == "send" else (call.root, call.at)
        way = f"{call.backend}/{sender}>{receiver}/{call.matched_tag}"
        self._messages[way] += 1
        return f"{way}/{self._messages[way]}"

    def _send(self, slot: ProcessSlot) -> None:
        call, met = slot.call, f"{slot.key}/met"
        if slot.packed is not None:
            write_value(self._store, slot.key, slot.packed)
            slot.packed = None
            self.detector.publish_progress()
            if call.nbytes <= NCCL_BUFFER:  # the sender goes on
                self.detector.sent.append((self._store, slot.key, pickle.loads(pack(call))))
                self._complete(slot, [call, call], 0)
        elif self._store.check([met]):
            (value,) = read_values(self._store, [met])
            delete_value(self._store, met, value)
            self._complete(slot, [call, pickle.loads(value)], 0)

    def _receive(self, slot: ProcessSlot) -> None:
        call, key = slot.call, slot.key or self._find_message_to(slot.call)
        if not self._store.check([key]):
            return
        (value,) = read_values(self._store, [key])
        delete_value(self._store, key, value)
        sent: CollectiveCall = pickle.loads(value)
        if sent.nbytes > NCCL_BUFFER:  # the sender waits
            write_value(self._store, f"{key}/met", pack(call))
        slot.pair = sent.rank, call.rank
        self._complete(slot, [sent, call], 1)

    def _find_message_to(self, call: CollectiveCall) -> str:
        """Return the key of a message to the caller from any rank, which is then taken; "" if there is none."""
        for source in range(self.size):
            way = f"{call.backend}/{source}>{call.at}/{call.matched_tag}"
            if self._store.check([key := f"{way}/{self._messages[way] + 1}"]):
                self._messages[way] += 1
                return key
        return ""


@hooks.synchronized.add
def _wait_for_gpu(_: object) -> None:
    """Let the host wait for the calls that NCCL would run on the rank's GPU."""
    if (detector := active_detector()) is not None:
        for transport in {slot.transport for slot in detector.pending}:
            transport.flush()
