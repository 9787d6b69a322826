"""The transport between processes: gloo carries each call, with its tensors, to all members.

Each member computes its own results by :mod:`..calls.semantics`, in the same order as ranks in one process, and so
gets the same bits. A collective is two of gloo's. The first gathers a *head* of fixed length from everybody: the facts
of the call, and the values if they fit. The second sends the rest, if a head did not hold everything. A thread of this
module runs both, for one call after another, so calls are completed whatever the callers do meanwhile, and Works can be
waited for in any order.

No caller waits within gloo, which would close the connections after a timeout, and cannot detect a deadlock.
"""

from __future__ import annotations

import gc
import os
import pickle
import queue
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from time import monotonic
from typing import Any

import torch
from torch import Tensor
from torch._C import _distributed_c10d as c10d
from torch.distributed import DistBackendError

from labkit import turns
from labkit.base.language import say

from ..calls import faults, semantics
from ..calls.call import CollectiveCall
from ..group.process_group import SimulatedProcessGroup
from ..group.slot import NCCL_BUFFER, PlainTensors, Slot
from . import call_packing
from .deadlock_detector import SOON, DeadlockDetector, start_detector
from .store_keys import KeysEvent, key_prefix

# Bytes of a head, enough for the facts of a call and up to a hundred numbers.
HEAD = 2048
_LONG = timedelta(days=20)
_COLLECTIVES = "collectives"
# Tags of NCCL's messages, which are matched by number.
_NUMBERED = 1 << 30
# Seconds for the launcher to end a rank whose neighbour is gone, so that only one rank reports.
_GRACE = 5.0

# Seconds for others to announce their groups after two groups have differed.
_SOON = 1.0

_NOTHING = torch.empty(0, dtype=torch.uint8)

_made: Counter[tuple[int, ...]] = Counter()


class ProcessSlot(Slot):
    """A call of this process. ``lost`` is gloo's error if a member is gone.

    line   an object that pending messages of a pair share with NCCL, which runs them in order; else None.
    """

    __slots__ = ("call", "detector", "line", "lost", "lost_at", "mine", "over")

    def __init__(self, call: CollectiveCall, size: int, detector: DeadlockDetector) -> None:
        super().__init__(size)
        self.call, self.detector, self.over = call, detector, threading.Event()
        self.mine = _NOTHING  # the packed call, until the call is completed
        self.lost: Exception | None = None
        self.lost_at = 0.0
        self.line: object = None

    def is_completed(self) -> bool:
        if self.lost is not None and self.error is None and monotonic() - self.lost_at > _GRACE:
            call = self.call  # a member is gone without a report
            en = f"{call.kind} #{call.seq} at {call.place}: another rank's process is gone"
            zh = f"{call.kind} #{call.seq}（{call.place}）：另一个 rank 的进程已经不在了"
            self.error = DistBackendError(say(en=en, zh=zh) + f"\n{self.lost}")
        return super().is_completed()

    def wait_for_members(
        self, call: CollectiveCall, ready: Callable[[], bool], timeout: timedelta | None
    ) -> bool:
        """Wait until ``ready()``; return False after ``timeout``. Raises Deadlock if no rank can go on."""
        with turns.keep_turn():
            if self.over.wait(SOON) and self.lost is None:
                return True
            return self.detector.wait(call, ready, self.over, timeout)

    def missing(self) -> list[int]:
        return self.detector.missing(self.call)

    def release_waiters(self) -> None:
        """Complete the call, and release waiting threads."""
        self.call.release()
        self.mine = _NOTHING
        self.detector.open.pop(self, None)
        self.detector.publish_progress()
        self.over.set()

    def mark_sent(self) -> None:
        """Let the sender, and messages behind, go on: the message is under way."""
        self.call.memo["away"], self.line = True, None
        self.detector.publish_progress()
        self.over.set()

    def fail(self, error: Exception) -> None:
        self.error = error
        self.release_waiters()

    def mark_lost(self, error: Exception) -> None:
        self.lost, self.lost_at = error, monotonic()
        self.over.set()


class GlooTransport:
    """The transport of a group between processes. All members create it at the same time."""

    def __init__(self, group: SimulatedProcessGroup) -> None:
        self.size, self.at, self.ranks = group.size(), group.rank(), group.ranks
        self._detector = start_detector(group)
        _made[self.ranks] += 1
        name = f"{'-'.join(map(str, self.ranks))}/{_made[self.ranks]}"
        with turns.keep_turn():
            self._detector.wait_for_members(group, name)
        name = key_prefix(name)
        self._store = c10d.PrefixStore(name, group.store)
        with PlainTensors(), turns.keep_turn():
            gloo: Any = c10d.ProcessGroupGloo(self._store, self.at, self.size, group.timeout)
            gloo._set_default_timeout(_LONG)
        self._gloo = gloo
        self._carriers: dict[Any, queue.SimpleQueue[Callable[[], None]]] = {}

    def submit(self, call: CollectiveCall) -> Slot:
        """Add ``call``, and start to send it to the other members."""
        call.node = int(os.environ.get("GROUP_RANK", "0"))  # two nodes each have a cuda:0
        slot = ProcessSlot(call, self.size, self._detector)
        with PlainTensors(), turns.keep_turn():
            self._detector.record_call(call, slot)
            slot.mine = call_packing.pack_call(call)
            if call.is_message:
                self._message(slot)
            else:
                self._run_in_thread(_COLLECTIVES, partial(self._exchange, slot))
        return slot

    def flush(self, rank: int) -> None:
        """Do nothing: each call has waited on the host."""

    def announce(self, call: CollectiveCall) -> list[CollectiveCall]:
        """Return the calls so far for a group of this number, with ``call``."""
        text, made = call_packing.pickle_facts(call), c10d.PrefixStore(f"made/{call.seq}", self._store)
        with turns.keep_turn():
            made.set(str(self.at), text)  # type: ignore[arg-type]  # bytes are taken too
            first = made.compare_set("first", "", text)  # type: ignore[arg-type]
            calls = [call, pickle.loads(first)]
            if calls[1].members != call.members:
                keys = [str(at) for at in range(self.size)]
                KeysEvent(made, keys).wait(_SOON)
                calls = [pickle.loads(made.get(key)) for key in keys if made.check([key])]
        return calls

    # The following methods run in threads of this module: one for collectives, one for each queue of messages.

    def _run_in_thread(self, key: Any, step: Callable[[], None]) -> None:
        steps: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        found = self._carriers.setdefault(key, steps)
        if found is steps:
            threading.Thread(target=_run_steps, args=(steps,), name=f"labkit {key}", daemon=True).start()
        found.put(step)

    def _exchange(self, slot: ProcessSlot) -> None:
        """Exchange the heads, and everything that did not fit into them, and complete the call."""
        with _pass_errors_to(slot.mark_lost):
            heads = [torch.empty(HEAD, dtype=torch.uint8) for _ in range(self.size)]
            self._gloo.allgather([heads], [_make_head(slot.mine)]).wait()
            sizes = [call_packing.packed_length(head) for head in heads]
            if max(sizes) <= HEAD:
                self._finish(slot, [head[:size] for head, size in zip(heads, sizes, strict=True)])
            elif not self._reduce_in_pieces(slot, heads):
                self._finish(slot, self._gather_whole_calls(slot, heads, sizes))

    def _gather_whole_calls(self, slot: ProcessSlot, heads: list[Tensor], sizes: list[int]) -> list[Tensor]:
        """Return the packed calls of all members."""
        mine, rests = slot.mine, [max(0, size - HEAD) for size in sizes]
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
            self._gloo.broadcast([ends[root]], options).wait()
        else:
            rest = torch.empty(most, dtype=torch.uint8)
            rest[: rests[self.at]] = mine[HEAD:]
            self._gloo.allgather([ends], [rest]).wait()
        return [whole[:size] for whole, size in zip(wholes, sizes, strict=True)]

    def _reduce_in_pieces(self, slot: ProcessSlot, heads: list[Tensor]) -> bool:
        """Reduce large tensors piece by piece, one in each member; return False if the call is of another kind.

        Each number is the same sum, in the same order, as with all pieces in one member.
        """
        if slot.call.kind not in ("all_reduce", "reduce_scatter_single"):
            return False
        calls = [call_packing.unpack_facts(head) for head in heads]
        known = [call for call in calls if call is not None]
        # Decide by the heads, which all members have: all must decide the same.
        if len(known) < self.size or len(known[0].inputs) != 1 or faults.mismatch_error(known) is not None:
            return False
        known[self.at].outputs = slot.call.outputs
        slot.calls = dict(enumerate(known))
        values = call_packing.unpack_call(slot.mine).inputs[0].reshape(-1)
        piece = -(-values.numel() // self.size)
        cut = torch.zeros(self.size * piece, dtype=values.dtype)
        cut[: values.numel()] = values
        there = torch.empty_like(cut)
        self._gloo.alltoall_base(there.view(torch.uint8), cut.view(torch.uint8), [], []).wait()
        result = semantics.reduce_tensors(list(there.view(self.size, piece)), slot.call.op, slot.call.factor)
        if slot.call.kind == "all_reduce":
            pieces = list(cut.view(torch.uint8).chunk(self.size))
            self._gloo.allgather([pieces], [result.view(torch.uint8)]).wait()
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

    # Messages: a thread for each neighbour and direction; with NCCL one for both directions, except in batches.

    def _message(self, slot: ProcessSlot) -> None:
        call, tag = slot.call, slot.call.matched_tag
        slot.pair = call.pair
        key: Any = call.kind, call.root, tag
        if call.backend == "nccl":
            tag = _NUMBERED | call.seq  # in any order of sending
            if "batch" not in call.memo:
                key = slot.line = call.group, call.ranks, call.root
        if call.kind == "recv":
            self._run_in_thread(key, partial(self._recv, slot, call.root, tag))
            return
        small, beside = call.nbytes <= NCCL_BUFFER, None if slot.line is None else ("sent", call.root)
        if small and self._detector.first_in_line(slot) is slot:
            slot.mark_sent()
        self._run_in_thread(key, partial(self._send, slot, call.root or 0, tag, beside if small else None))

    def _send(self, slot: ProcessSlot, to: int, tag: int, beside: object) -> None:
        """Send a message. Thread ``beside`` waits for the end, so that later messages go on; if None, this thread."""
        mine = slot.mine
        with _pass_errors_to(slot.mark_lost):
            parts = [_make_head(mine), mine[HEAD:]] if mine.numel() > HEAD else [_make_head(mine)]
            works = [self._gloo.send([part], to, tag) for part in parts]
            if beside is None:
                self._finish_send(slot, works)
            else:
                slot.mark_sent()
                self._run_in_thread(beside, partial(self._finish_send, slot, works))

    def _finish_send(self, slot: ProcessSlot, works: list[Any]) -> None:
        with _pass_errors_to(slot.mark_lost):
            for work in works:
                work.wait()
            slot.met = slot.finished = slot.call.arrived  # the receiver's clock is unknown here
            slot.done = True
            slot.release_waiters()

    def _recv(self, slot: ProcessSlot, source: int | None, tag: int) -> None:
        head = torch.empty(HEAD, dtype=torch.uint8)
        with _pass_errors_to(slot.mark_lost):
            if source is None:
                work = self._gloo.recv_anysource([head], tag)
                work.wait()
                source = work._source_rank()
            else:
                self._gloo.recv([head], source, tag).wait()
            size = call_packing.packed_length(head)
            whole = torch.empty(max(size, HEAD), dtype=torch.uint8)
            whole[:HEAD] = head
            if size > HEAD:
                self._gloo.recv([whole[HEAD:]], source, tag).wait()
            with _pass_errors_to(slot.fail):
                sent = call_packing.unpack_call(whole[:size])
                calls = [sent, slot.call]
                slot.pair = sent.rank, slot.call.rank
                slot.calls = dict(enumerate(calls))
                _complete(slot, calls, lambda: list(zip(slot.call.outputs, sent.inputs, strict=True)))


@contextmanager
def _pass_errors_to(fail: Callable[[Exception], None]) -> Iterator[None]:
    """Pass errors in the context to ``fail`` instead of raising."""
    try:
        yield
    except Exception as error:
        fail(error)


def _complete(slot: ProcessSlot, calls: list[CollectiveCall], pairs: Callable[[], semantics.Pairs]) -> None:
    """Complete a call with the calls of all members, or with its error."""
    wrong = faults.mismatch_error(calls)
    if wrong is not None:
        slot.fail(wrong)
        return

    def write() -> None:
        # Outside inference mode autograd records (c10/core/InferenceMode.h); NCCL's writes are no operators.
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
    """Protect gloo from garbage collection in a forked child (a DataLoader's worker), which lacks its threads."""
    if _made:
        gc.freeze()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_freeze_garbage)
