"""A pending collective, from the first call to the last.

Each transport has its own way to match calls and to wait for members.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from datetime import timedelta
from time import perf_counter
from typing import Any, Protocol

import torch

from ..calls.call import CollectiveCall
from ..rank.rank import current_rank

# Bytes of a message up to which a sender goes on before the receiver comes: NCCL's buffer of a connection
# (NCCL_BUFFSIZE, 4 MiB by default).
NCCL_BUFFER = 4 * 2**20


class Slot:
    """The calls of one collective by group rank; those of a message by 0 (sender) and 1 (receiver).

    pair      global ranks of a message's sender and receiver.
    done      whether the values are written.
    last      the rank that came last; ``met`` is the clock when it came.
    finished  the clock at completion.
    error     the error that ended the collective.
    """

    __slots__ = ("calls", "done", "error", "finished", "last", "met", "pair", "size")

    def __init__(self, size: int, pair: tuple[int, ...] = ()) -> None:
        self.calls: dict[int, CollectiveCall] = {}
        self.size, self.pair = size, pair
        self.done = False
        self.met = self.finished = 0.0
        self.last = -1
        self.error: BaseException | None = None

    def is_completed(self) -> bool:
        return self.done or self.error is not None

    def wait_for_members(
        self, call: CollectiveCall, ready: Callable[[], bool], timeout: timedelta | None
    ) -> bool:
        """Wait until ``ready()``; return False after ``timeout``. Raises Deadlock if no rank can go on."""
        raise NotImplementedError

    def missing(self) -> list[int]:
        """Return the global ranks that have not come."""
        raise NotImplementedError

    def finish(self, write: Callable[[list[CollectiveCall]], None]) -> None:
        """Complete the collective by ``write(calls)``, which writes the values. Its error becomes the slot's.

        The calls are in the order of the members; their tensors are let go.
        """
        calls = [self.calls[at] for at in sorted(self.calls)]
        last = max(self.calls.values(), key=lambda call: call.arrived)
        started = perf_counter()
        try:
            with PlainTensors():
                write(calls)
        except Exception as error:
            self.error = error
        self.met, self.last = last.arrived, last.rank
        # Without simulated time, the clock goes on by the seconds that writing took.
        seconds, rank = perf_counter() - started, current_rank()
        self.finished = self.met + seconds if rank is None else rank.time.finish(self, seconds)
        self.done = self.error is None
        later = [again for call in calls for again in call.memo.get("then", ())]
        for call in calls:
            call.release()
        for again in later:
            again()


def join_line(lines: dict[tuple[int, int], deque[CollectiveCall]], call: CollectiveCall, slot: Slot) -> None:
    """Add a message to the queue of its pair in ``lines``: NCCL runs a pair's messages in order; gloo does not.

    torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp, pointToPoint, which excepts batches; pytorch/pytorch#138074.
    """
    if call.backend == "nccl" and call.root is not None and "batch" not in call.memo:
        line = lines.setdefault((call.at, call.root), deque())
        line.append(call)
        call.memo["slot"], call.memo["line"] = slot, line


def first_in_line(call: CollectiveCall) -> CollectiveCall:
    """Return the earlier call that blocks ``call``, or ``call`` if none does."""
    line = call.memo.get("line")
    return line[0] if line else call


def leave_line(call: CollectiveCall) -> list[Any]:
    """Remove ``call`` from its queue; return the slot of the next message, if any."""
    line = call.memo.pop("line", None)
    if line is None:
        return []
    line.remove(call)
    return [line[0].memo["slot"]] if line else []


class Transport(Protocol):
    """Matches the calls of a group's members.

    ranks   the global ranks of the members.
    """

    ranks: tuple[int, ...]

    def submit(self, call: CollectiveCall) -> Slot:
        """Add ``call``; return its slot, which may be completed already."""

    def flush(self) -> None:
        """Wait until the calls of the current rank have run, as destroy_process_group does."""

    def announce(self, call: CollectiveCall) -> list[CollectiveCall]:
        """Record ``call``, which creates a group; return all ranks' calls so far for the group of the same number."""


# NCCL's writes don't change the version counters that autograd checks.
_UNCOUNTED = torch._C.DispatchKeySet(torch._C.DispatchKey.ADInplaceOrView)
# C's own function: torch.no_grad() costs more than a small sum.
_set_grad_enabled: Any = torch._C._set_grad_enabled


class PlainTensors:
    """A context in which tensors are plain: no modes, no autograd, and no version counts."""

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
