"""The Work that a collective returns: done when its last member has come."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch._C._distributed_c10d import Work

from .waiting import wait_for
from .call import Call
from .meeting import Slot
from .rank import rank_here


class SlotWork(Work):
    """Waits for one :class:`.meeting.Slot`."""

    def __init__(self, call: Call, slot: Slot, results: list[Tensor]) -> None:
        super().__init__()
        self.call, self.slot, self.results = call, slot, results

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Stand here until the last member has come; True, or what went wrong is raised."""
        if not self._ready():
            wait_for(self.call, self._ready, timeout)
        slot = self.slot
        if slot.error is not None:
            raise slot.error
        rank = rank_here()
        if rank is not None and slot.done:
            rank.wait_until(slot.finished)
        return True

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

    def result(self) -> list[Tensor]:
        return self.results

    def source_rank(self) -> int:
        """The sender of what was received, in the group."""
        return self.slot.calls[0].at

    _source_rank = source_rank

    def get_future(self) -> torch.futures.Future[list[Tensor]]:
        # C++ would wait for it with the baton in hand: what asks for it waits here.
        self.wait()
        future: torch.futures.Future[list[Tensor]] = torch.futures.Future()
        future.set_result(self.results)
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
