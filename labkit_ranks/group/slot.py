"""One collective of one group, from the first call to the last: what both transports share.

How a member waits for the others, and how their calls come to it, is each transport's own.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from time import perf_counter
from typing import Any, Protocol

import torch

from ..calls.call import CollectiveCall
from ..rank.rank import current_rank

# A message of up to this many bytes is on its way when its sender goes on, a larger one waits for its receiver: what
# fits into NCCL's buffer of a connection (NCCL_BUFFSIZE, 4 MiB by default).
NCCL_BUFFER = 4 * 2**20


class Slot:
    """One collective of one group: the calls of its members, by their rank in the group (of a message: 0 sends).

    pair      of a message, the world's ranks of its sender and its receiver.
    done      whether all have come and the values are written.
    met       the clock when the last came, ``last`` its rank; ``finished`` the clock when it was done.
    error     instead of being done, it failed.
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
        """Wait until ``ready()``; False if time ran out. Raises Deadlock when no rank can go on."""
        raise NotImplementedError

    def missing(self) -> list[int]:
        """The world's ranks that have not come."""
        raise NotImplementedError

    def finish(self, write: Callable[[], None]) -> None:
        """All have come: ``write()`` puts the values into the tensors. What it raises is the slot's error."""
        last = max(self.calls.values(), key=lambda call: call.arrived)
        started = perf_counter()
        try:
            with PlainTensors():
                write()
        except Exception as error:
            self.error = error
        self.met, self.last = last.arrived, last.rank
        seconds, rank = perf_counter() - started, current_rank()
        self.finished = self.met + seconds if rank is None else rank.time.finish(self, seconds)
        self.done = self.error is None


class Transport(Protocol):
    """The way by which the calls of a group's members come together.

    ranks   the world's ranks that are its members.
    """

    ranks: tuple[int, ...]

    def submit(self, call: CollectiveCall) -> Slot:
        """``call`` has come; the slot may be over by then."""

    def flush(self, rank: int) -> None:
        """Wait until the calls of ``rank`` have run, as destroy_process_group does."""

    def announce(self, call: CollectiveCall) -> list[CollectiveCall]:
        """The calls by which members have made the group of this number, ``call`` among them; nobody waits for all."""


# NCCL writes into memory of which autograd keeps the number of changes, and counts none.
_UNCOUNTED = torch._C.DispatchKeySet(torch._C.DispatchKey.ADInplaceOrView)
# C's own: torch.no_grad() costs more than a small sum.
_set_grad_enabled: Any = torch._C._set_grad_enabled


class PlainTensors:
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
