"""The transport between processes: gloo carries the calls of all members, and their tensors, to each of them.

Each member then computes its own outputs, by the :mod:`..calls.semantics` that ranks in one process have, in the same
order: the same bits. A collective is two of gloo's: a *head* of fixed length from everybody (the call's facts, and the
values if they are few), and, if somebody's head did not hold all, the rest. A thread of our own begins the second when
the first is done, so that a call is completed whatever its caller does meanwhile, and Works can be waited for in any
order.

No caller waits within gloo: it would end the connections when time runs out, and could not be told of a deadlock.
"""

from __future__ import annotations

import gc
import os
import pickle
import queue
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from time import monotonic, perf_counter
from typing import Any

import torch
from torch import Tensor
from torch._C import _distributed_c10d as c10d
from torch.distributed import DistBackendError

from labkit.base.language import say

from ..calls import faults, semantics
from ..calls.call import CollectiveCall
from ..group.process_group import SimulatedProcessGroup
from ..group.slot import NCCL_BUFFER, PlainTensors, Slot
from ..rank.rank import internal_work
from . import call_packing
from .deadlock_detector import SOON, DeadlockDetector, start_detector
from .store_keys import KeysEvent, key_prefix

# Bytes of a head: a call in words, and ten or a hundred numbers.
HEAD = 2048
_LONG = timedelta(days=20)
_REST = "rest"
# The tags of messages that find their receivers by their numbers.
_NUMBERED = 1 << 30
# Seconds that a rank whose neighbour is gone gives the launcher to end it too: then one rank tells, not all.
_GRACE = 5.0

# Seconds that others get to say which group they make, once one has said another than this rank.
_SOON = 1.0

_NOTHING = torch.empty(0, dtype=torch.uint8)

_made: Counter[tuple[int, ...]] = Counter()


class ProcessSlot(Slot):
    """One call of one group as this process knows it; ``lost`` is what gloo said when a member was gone.

    line   of a message of NCCL's, what it has in common with those of its pair, which go one after the other; None of
           others, and once it is on its way.
    """

    __slots__ = ("call", "heads", "line", "lookout", "lost", "lost_at", "mine", "over")

    def __init__(self, call: CollectiveCall, size: int, lookout: DeadlockDetector) -> None:
        super().__init__(size)
        self.call, self.lookout, self.over = call, lookout, threading.Event()
        # What this process sends, packed; the heads of all. Empty before, and when it is over.
        self.mine = self.heads = _NOTHING
        self.lost: Exception | None = None
        self.lost_at = 0.0
        self.line: object = None

    def is_completed(self) -> bool:
        if self.lost is not None and self.error is None and monotonic() - self.lost_at > _GRACE:
            call = self.call  # its member has gone, and nobody has said why
            en = f"{call.kind} #{call.seq} at {call.place}: another rank's process is gone"
            zh = f"{call.kind} #{call.seq}（{call.place}）：另一个 rank 的进程已经不在了"
            self.error = DistBackendError(say(en=en, zh=zh) + f"\n{self.lost}")
        return super().is_completed()

    def wait_for_members(
        self, call: CollectiveCall, ready: Callable[[], bool], timeout: timedelta | None
    ) -> bool:
        """Wait until ``ready()``; False if time ran out. Raises Deadlock when no rank can go on."""
        with internal_work():
            if self.over.wait(SOON) and self.lost is None:
                return True
            return self.lookout.wait(call, ready, self.over, timeout)

    def missing(self) -> list[int]:
        return self.lookout.missing(self.call)

    def release_waiters(self) -> None:
        """It is over: the threads that wait for it may go on."""
        self.call.release()
        self.heads = self.mine = _NOTHING
        self.lookout.open.pop(self, None)
        self.lookout.publish_progress()
        self.over.set()

    def mark_sent(self) -> None:
        """It is on its way: its sender may go on, and what stands behind it."""
        self.call.memo["away"], self.line = True, None
        self.lookout.publish_progress()
        self.over.set()

    def fail(self, error: Exception) -> None:
        self.error = error
        self.release_waiters()

    def mark_lost(self, error: Exception) -> None:
        self.lost, self.lost_at = error, monotonic()
        self.over.set()


class GlooTransport:
    """The transport of one group in this process. Made by all its members at once, as their groups are."""

    def __init__(self, group: SimulatedProcessGroup) -> None:
        self.size, self.at, self.ranks = group.size(), group.rank(), group.ranks
        self._lookout = start_detector(group)
        _made[self.ranks] += 1
        name = f"{'-'.join(map(str, self.ranks))}/{_made[self.ranks]}"
        with internal_work():
            self._lookout.wait_for_members(group, name)
        name = key_prefix(name)
        self._store = c10d.PrefixStore(name, group.store)
        with PlainTensors(), internal_work():
            made: list[Any] = []
            for part in ("heads", "bodies"):
                store = c10d.PrefixStore(f"{name}/{part}", group.store)
                made.append(c10d.ProcessGroupGloo(store, self.at, self.size, group.timeout))
                made[-1]._set_default_timeout(_LONG)
            self._heads, self._bodies = made
        self._lock = threading.Lock()
        self._order: deque[ProcessSlot] = deque()
        self._carriers: dict[Any, queue.SimpleQueue[Callable[[], None]]] = {}

    def submit(self, call: CollectiveCall) -> Slot:
        """``call`` has come, and is on its way to the others."""
        call.node = int(os.environ.get("GROUP_RANK", "0"))  # two nodes have a cuda:0 each
        slot = ProcessSlot(call, self.size, self._lookout)
        with PlainTensors(), internal_work():
            self._lookout.record_call(call, slot)
            slot.mine = call_packing.pack_call(call)
            if call.is_message:
                self._message(slot)
                return slot
            heads = torch.empty(self.size, HEAD, dtype=torch.uint8)
            with self._lock:
                self._order.append(slot)
                work = self._heads.allgather([list(heads.unbind())], [_make_head(slot.mine)])
        work.get_future().add_done_callback(partial(self._receive_heads, slot, heads))
        return slot

    def flush(self, rank: int) -> None:
        """Do nothing: each call has waited on the host already."""

    def announce(self, call: CollectiveCall) -> list[CollectiveCall]:
        """The calls by which members have made the group of this number, ``call`` among them."""
        text, made = call_packing.pickle_facts(call), c10d.PrefixStore(f"made/{call.seq}", self._store)
        with internal_work():
            made.set(str(self.at), text)  # type: ignore[arg-type]  # bytes are taken too
            first = made.compare_set("first", "", text)  # type: ignore[arg-type]
            calls = [call, pickle.loads(first)]
            if calls[1].members != call.members:
                keys = [str(at) for at in range(self.size)]
                KeysEvent(made, keys).wait(_SOON)
                calls = [pickle.loads(made.get(key)) for key in keys if made.check([key])]
        return calls

    # Gloo's threads come here.

    def _receive_heads(self, slot: ProcessSlot, heads: Tensor, future: Any) -> None:
        """All heads are here. The rest goes in the order of the calls, which is the same in all members."""
        with _pass_errors_to(slot.mark_lost), PlainTensors(), self._lock:
            future.value()
            slot.heads = heads
            while self._order and self._order[0].heads.numel():
                first = self._order.popleft()
                with _pass_errors_to(first.fail):
                    self._send_rest(first)

    def _send_rest(self, slot: ProcessSlot) -> None:
        """Send what did not fit into the heads, if anything did not."""
        heads = slot.heads
        sizes = [call_packing.packed_length(head) for head in heads]
        if max(sizes) > HEAD:
            self._run_in_thread(_REST, partial(self._exchange, slot, sizes))
        else:
            self._finish(slot, [head[:size] for head, size in zip(heads, sizes, strict=True)])

    # Threads of our own come here: for the rests of a group, and for its messages, each in the order of their calls.

    def _run_in_thread(self, key: Any, step: Callable[[], None]) -> None:
        if key not in self._carriers:
            steps: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
            self._carriers[key] = steps
            threading.Thread(target=_run_steps, args=(steps,), name=f"labkit {key}", daemon=True).start()
        self._carriers[key].put(step)

    def _exchange(self, slot: ProcessSlot, sizes: list[int]) -> None:
        with _pass_errors_to(slot.mark_lost):
            if not self._reduce_in_pieces(slot):
                self._finish(slot, self._gather_whole_calls(slot, sizes))

    def _gather_whole_calls(self, slot: ProcessSlot, sizes: list[int]) -> list[Tensor]:
        """All that all members brought."""
        heads, mine = slot.heads, slot.mine
        rests = [max(0, size - HEAD) for size in sizes]
        most = max(rests)
        wholes = [torch.empty(HEAD + most, dtype=torch.uint8) for _ in sizes]
        for whole, head in zip(wholes, heads, strict=True):
            whole[:HEAD] = head
        ends = [whole[HEAD:] for whole in wholes]
        if sum(map(bool, rests)) == 1:
            root = rests.index(most)
            if root == self.at:
                ends[root].copy_(mine[HEAD:])
            options = c10d.BroadcastOptions()
            options.rootRank = root
            self._bodies.broadcast([ends[root]], options).wait()
        else:
            rest = torch.empty(most, dtype=torch.uint8)
            rest[: rests[self.at]] = mine[HEAD:]
            self._bodies.allgather([ends], [rest]).wait()
        return [whole[:size] for whole, size in zip(wholes, sizes, strict=True)]

    def _reduce_in_pieces(self, slot: ProcessSlot) -> bool:
        """Reduce what is large piece by piece, each by one member, if it can be; whether it could.

        Each number is the same sum in the same order as if one member had them all.
        """
        heads, mine = slot.heads, slot.mine
        if slot.call.kind not in ("all_reduce", "reduce_scatter_single"):
            return False
        calls = [call_packing.unpack_facts(head) for head in heads]
        known = [call for call in calls if call is not None]
        # One member would decide otherwise than another if this looked at more than the heads.
        if len(known) < self.size or len(known[0].inputs) != 1 or faults.mismatch_error(known) is not None:
            return False
        known[self.at].outputs = slot.call.outputs
        slot.calls = dict(enumerate(known))
        values = call_packing.unpack_call(mine).inputs[0].reshape(-1)
        piece = -(-values.numel() // self.size)
        cut = torch.zeros(self.size * piece, dtype=values.dtype)
        cut[: values.numel()] = values
        there = torch.empty_like(cut)
        self._bodies.alltoall_base(there.view(torch.uint8), cut.view(torch.uint8), [], []).wait()
        result = semantics.reduce_tensors(list(there.view(self.size, piece)), slot.call.op, slot.call.factor)
        if slot.call.kind == "all_reduce":
            pieces = list(cut.view(torch.uint8).chunk(self.size))
            self._bodies.allgather([pieces], [result.view(torch.uint8)]).wait()
            result = cut[: values.numel()]
        with _pass_errors_to(slot.fail):
            _complete(slot, known, lambda: [(slot.call.outputs[0], result)])
        return True

    def _finish(self, slot: ProcessSlot, wholes: list[Tensor]) -> None:
        with _pass_errors_to(slot.fail):
            calls = [call_packing.unpack_call(whole) for whole in wholes]
            calls[self.at].outputs = slot.call.outputs
            calls[self.at].device = slot.call.device
            slot.calls = dict(enumerate(calls))
            _complete(slot, calls, lambda: semantics.compute_outputs(calls, self.at))

    # Messages: a thread for each neighbour and direction; of NCCL's, one for both, unless they are of a batch.

    def _message(self, slot: ProcessSlot) -> None:
        call, tag = slot.call, slot.call.matched_tag
        slot.pair = call.pair
        key: Any = call.kind, call.root, tag
        if call.backend == "nccl":
            tag = _NUMBERED | call.seq  # in whatever order they are sent
            if "batch" not in call.memo:
                key = slot.line = call.group, call.ranks, call.root
        if call.kind == "recv":
            self._run_in_thread(key, partial(self._recv, slot, call.root, tag))
            return
        small, beside = call.nbytes <= NCCL_BUFFER, None if slot.line is None else ("sent", call.root)
        if small and self._lookout.first_in_line(slot) is slot:
            slot.mark_sent()
        self._run_in_thread(key, partial(self._send, slot, call.root or 0, tag, beside if small else None))

    def _send(self, slot: ProcessSlot, to: int, tag: int, beside: object) -> None:
        """Send it. ``beside`` is the thread that waits for it where what stands behind it goes on; None: this one."""
        mine, began = slot.mine, perf_counter()
        with _pass_errors_to(slot.mark_lost):
            parts = [_make_head(mine), mine[HEAD:]] if mine.numel() > HEAD else [_make_head(mine)]
            works = [self._bodies.send([part], to, tag) for part in parts]
            if beside is None:
                self._finish_send(slot, works, began)
            else:
                slot.mark_sent()
                self._run_in_thread(beside, partial(self._finish_send, slot, works, began))

    def _finish_send(self, slot: ProcessSlot, works: list[Any], began: float) -> None:
        call = slot.call
        with _pass_errors_to(slot.mark_lost):
            for work in works:
                work.wait()
            # When the receiver came by its clock, nobody says here: a large one has waited for it as long as it took.
            slot.met = call.arrived + (0.0 if "away" in call.memo else perf_counter() - began)
            slot.finished = slot.met
            slot.done = True
            slot.release_waiters()

    def _recv(self, slot: ProcessSlot, source: int | None, tag: int) -> None:
        head = torch.empty(HEAD, dtype=torch.uint8)
        with _pass_errors_to(slot.mark_lost):
            if source is None:
                work = self._bodies.recv_anysource([head], tag)
                work.wait()
                source = work._source_rank()
            else:
                self._bodies.recv([head], source, tag).wait()
            size = call_packing.packed_length(head)
            whole = torch.empty(max(size, HEAD), dtype=torch.uint8)
            whole[:HEAD] = head
            if size > HEAD:
                self._bodies.recv([whole[HEAD:]], source, tag).wait()
            with _pass_errors_to(slot.fail):
                sent = call_packing.unpack_call(whole[:size])
                calls = [sent, slot.call]
                slot.pair = sent.rank, slot.call.rank
                slot.calls = dict(enumerate(calls))
                _complete(slot, calls, lambda: list(zip(slot.call.outputs, sent.inputs, strict=True)))


@contextmanager
def _pass_errors_to(fail: Callable[[Exception], None]) -> Iterator[None]:
    """A context that no error leaves: ``fail`` is given it."""
    try:
        yield
    except Exception as error:
        fail(error)


def _complete(slot: ProcessSlot, calls: list[CollectiveCall], pairs: Callable[[], semantics.Pairs]) -> None:
    """All that belongs to a call is here: it is done, or its error known."""
    wrong = faults.mismatch_error(calls)
    if wrong is not None:
        slot.fail(wrong)
        return

    def write() -> None:
        # Without inference mode it lets autograd record (c10/core/InferenceMode.h), and NCCL's writes are no operators.
        with torch.inference_mode(any(out.is_inference() for out in slot.call.outputs)), torch.no_grad():
            semantics.write_outputs(pairs())

    slot.finish(write)
    for call in calls:
        call.memo.clear()
    slot.release_waiters()


def _run_steps(steps: queue.SimpleQueue[Callable[[], None]]) -> None:
    while True:
        with PlainTensors():
            steps.get()()


def _make_head(whole: Tensor) -> Tensor:
    if whole.numel() >= HEAD:
        return whole[:HEAD].clone()
    head = torch.zeros(HEAD, dtype=torch.uint8)
    head[: whole.numel()] = whole
    return head


def _freeze_garbage() -> None:
    """In a forked child (a DataLoader's worker) gloo has no threads: it must not be taken apart as garbage."""
    if _made:
        gc.freeze()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_freeze_garbage)
