"""The Works that collectives return."""

from __future__ import annotations

import copy
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch._C._distributed_c10d import Work

from labkit.trace import emitting as trace
from labkit.trace.events import Event

from ..calls import faults
from ..calls.call import CollectiveCall
from ..rank.clock import TimedRank
from ..rank.enqueued_calls import enqueue
from ..rank.memory_samples import sample_memory
from ..rank.rank import work_settled
from .slot import Slot

# Descriptions of groups that are not worth showing.
_UNSAID = ("", "default_pg", "undefined")


class _WaitableWork(Work):
    """Methods common to the Work of one call and the Work of several."""

    def synchronize(self) -> None:
        self.wait()

    def get_future(self) -> torch.futures.Future[list[Tensor]]:
        # C++ would wait without yielding the turn, so wait here first.
        self._receive(by_cpp=True)
        future: torch.futures.Future[list[Tensor]] = torch.futures.Future()
        future.set_result(self.result())
        return future

    def _receive(self, *, by_cpp: bool) -> bool:
        return self.wait()


class SlotWork(_WaitableWork):
    """The Work of one call. It waits for the call's slot, and reports the call to an open recording."""

    def __init__(
        self, call: CollectiveCall, slot: Slot, results: list[Tensor], rank: TimedRank | None
    ) -> None:
        super().__init__()
        self.call, self.slot, self.results, self.rank = call, slot, results, rank
        self._reported = trace.recording is None or self.rank is None or call.makes_a_group
        if not self._reported and self.rank is not None:
            self.rank.unreported.append(self)

    def wait(self, timeout: timedelta | None = None) -> bool:
        return self._receive(timeout)

    def _receive(self, timeout: timedelta | None = None, *, by_cpp: bool = False) -> bool:
        """Wait until the last member has come, and return True; raise the call's error."""
        for tell in work_settled:
            tell(self)
        slot, rank = self.slot, self.rank
        given = timeout is not None and timeout.total_seconds() > 0  # -1 ms is "none given" in C++
        if given:
            self.call.memo["timed"] = True
        timeout = timeout if given else self.call.timeout
        began = 0.0 if rank is None else rank.clock()
        self._wait_for_slot(lambda: self._may_go_on() or "enqueued" in self.call.memo, timeout)
        if rank is not None and "enqueued" in self.call.memo and not self._may_go_on():
            enqueue(rank, self)
            return True
        if rank is not None and slot.done:
            rank.time.receive(rank, slot, began, by_cpp=by_cpp)
            if not self._reported:
                self._report(max(0.0, slot.met - began))
        elif "away" in self.call.memo:
            self.results = []  # the message is sent: release the tensors
        return True

    def _wait_for_slot(self, ready: Callable[[], bool], timeout: timedelta | None) -> None:
        slot = self.slot
        self.call.on_deadlock = self._report_stuck
        try:
            if not ready() and not slot.wait_for_members(self.call, ready, timeout):
                assert timeout is not None
                slot.error = faults.timeout_error(self.call, timeout, slot.missing())
        except BaseException:  # the rank is being ended, or all ranks are deadlocked
            self.call.memo["told"] = True
            self._report_stuck()
            raise
        finally:
            self.call.on_deadlock = None  # let its tensors go
        if slot.error is not None:
            raise copy.copy(slot.error)  # a copy for each rank, with a traceback of its own

    def connect(self) -> None:
        """Wait until the call has connected the other members, as NCCL's host does."""
        self._wait_for_slot(lambda: self.slot.is_completed() or self.call.is_connected, self.call.timeout)

    def wait_on_host(self) -> None:
        """Wait until the call has run, after its rank had gone on."""
        self._wait_for_slot(self.slot.is_completed, self.call.timeout)

    def _report_stuck(self) -> None:
        if not self._reported:
            self._reported = True
            self._emit(0.0, stuck=True)

    def report_if_done(self) -> None:
        """Report a completed call to the recording although nobody has waited for it."""
        if self.slot.done and not self._reported:
            self._report(0.0)
        elif "enqueued" in self.call.memo:
            self._report_stuck()

    def _report(self, waited: float) -> None:
        self._reported = True
        if self.rank is not None:
            self.rank.unreported.remove(self)
        self._emit(waited)

    def _emit(self, waited: float, *, stuck: bool = False) -> None:
        """Emit the event of the rank's part, which has waited for ``waited`` seconds, or is ``stuck``."""
        call, slot = self.call, self.slot
        if trace.recording is None or self.rank is None:
            return
        trace.emit_at(
            Event(
                "stuck" if stuck else "collective",
                call.device,
                direction="backward" if call.backward else "forward",
                start=call.arrived,
                seconds=max(slot.finished - call.arrived, 0.0),
                name=call.kind,
                rank=call.rank,
                group=call.group if call.desc in _UNSAID else f"{call.desc} {call.group}",
                async_op=call.async_op,
                sequence=call.seq,
                ranks=tuple(slot.missing()) if stuck else slot.pair or call.ranks,
                waited=waited,
                last=slot.last,
                place=call.short_place,
                **call.event_facts,
            )
        )
        sample_memory(self.rank, call.kind, call.device if call.event_facts.get("nbytes") else "")

    def _may_go_on(self) -> bool:
        return self.slot.is_completed() or "away" in self.call.memo

    def block_current_stream(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        done = self._may_go_on()
        for tell in work_settled if done else ():
            tell(self)
        return done

    def is_success(self) -> bool:
        return self.slot.done

    def exception(self) -> Any:
        return self.slot.error

    def result(self) -> list[Any]:
        found: list[Any] = self.results
        if self.call.kind == "all_gather":
            found = found if isinstance(found[0], Tensor) else list(found[0])
            if self.call.backend == "nccl" and len({tensor.shape for tensor in found}) == 1:
                # NCCL writes into one tensor, and copies to the outputs (ProcessGroupNCCL.cpp, allgather).
                return [torch.stack(found)]
        return found

    def source_rank(self) -> int:
        """Return the sender's rank in the group."""
        return self.slot.calls[0].at

    _source_rank = source_rank


class Works(_WaitableWork):
    """The Work of several calls: a coalescing manager returns it."""

    def __init__(self, works: list[Work]) -> None:
        super().__init__()
        self.works = works

    def wait(self, timeout: timedelta | None = None) -> bool:
        for work in self.works:
            work.wait() if timeout is None else work.wait(timeout)
        return True

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self.works)

    def is_success(self) -> bool:
        return all(work.is_success() for work in self.works)

    def result(self) -> list[Tensor]:
        return [tensor for work in self.works for tensor in work.result()]
