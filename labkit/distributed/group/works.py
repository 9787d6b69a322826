"""The Work that a collective returns: done when its last member has come."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch._C._distributed_c10d import Work

from ...trace import emitting as trace
from ..calls import faults
from ..calls.call import Call
from ..rank.rank import alone, here
from ..threads.meeting import Slot
from .telling import tell


class SlotWork(Work):
    """Waits for one :class:`.meeting.Slot`."""

    def __init__(self, call: Call, slot: Slot, results: list[Tensor], timeout: timedelta | None) -> None:
        super().__init__()
        self.call, self.slot, self.results, self.timeout = call, slot, results, timeout
        self.rank = here.rank or alone.rank
        self._told = trace.recording is None or self.rank is None
        if not self._told and self.rank is not None:
            self.rank.untold.append(self)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Stand here until the last member has come; True, or what went wrong is raised."""
        slot, rank = self.slot, self.rank
        if timeout is None or timeout.total_seconds() <= 0:  # -1 ms is "none given" in C++
            timeout = self.timeout
        began = 0.0 if rank is None else rank.clock()
        if not self._ready() and not slot.stand(self.call, self._ready, timeout):
            assert timeout is not None
            slot.error = faults.timeout_error(self.call, timeout, [other.number for other in slot.missing()])
        if slot.error is not None:
            raise slot.error
        if rank is not None and slot.done:
            rank.wait_until(slot.finished)
            if not self._told:
                self.tell(max(0.0, slot.met - began))
        return True

    def tell(self, waited: float = 0.0) -> None:
        """Emit the event of this rank's part, which has the result now."""
        self._told = True
        if self.rank is not None:
            self.rank.untold.remove(self)
            tell(self.call, self.slot, waited)

    def _ready(self) -> bool:
        return self.slot.is_over() or "away" in self.call.memo

    def synchronize(self) -> None:
        self.wait()

    def block_current_stream(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        return self._ready()

    def is_success(self) -> bool:
        return self.slot.done

    def exception(self) -> Any:
        return self.slot.error

    def result(self) -> list[Any]:
        found: list[Any] = self.results
        if self.call.kind == "all_gather":
            found = found if isinstance(found[0], Tensor) else list(found[0])
            if self.call.backend == "nccl" and len({tensor.shape for tensor in found}) == 1:
                # What NCCL wrote into, from which the tensors were copied (ProcessGroupNCCL.cpp, allgather).
                return [torch.stack(found)]
        return found

    def source_rank(self) -> int:
        """The sender of what was received, in the group."""
        return self.slot.calls[0].at

    _source_rank = source_rank

    def get_future(self) -> torch.futures.Future[list[Tensor]]:
        # C++ would wait for it with the baton in hand: what asks for it waits here.
        self.wait()
        future: torch.futures.Future[list[Tensor]] = torch.futures.Future()
        future.set_result(self.result())
        return future


class Works(Work):
    """Several, waited for together: what a coalescing manager returns."""

    def __init__(self, works: list[Work]) -> None:
        super().__init__()
        self.works = works

    def wait(self, timeout: timedelta | None = None) -> bool:
        for work in self.works:
            work.wait() if timeout is None else work.wait(timeout)
        return True

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self.works)

    def is_success(self) -> bool:
        return all(work.is_success() for work in self.works)

    def result(self) -> list[Tensor]:
        return [tensor for work in self.works for tensor in work.result()]

    def get_future(self) -> torch.futures.Future[list[Tensor]]:
        self.wait()
        future: torch.futures.Future[list[Tensor]] = torch.futures.Future()
        future.set_result(self.result())
        return future
