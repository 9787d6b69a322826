"""Detects deadlocks among processes: ranks publish their states in the group's store.

A rank that has waited for a moment publishes what it waits for, counts its looks for it, and reads the states of the
others. No rank can go on if each waits or has ended, and has looked in vain since all states are the same. Busy ranks
publish nothing, nor does a rank that waits for something of its own process (a lock, a queue, an event).
"""

from __future__ import annotations

import atexit
import os
import pickle
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from multiprocessing.process import parent_process
from multiprocessing.util import Finalize
from operator import attrgetter
from time import monotonic
from typing import Any, NoReturn

from torch._C import _distributed_c10d as c10d

from labkit.turns import Deadlock

from ..calls import faults
from ..calls.call import CollectiveCall
from ..calls.visits import LineVisits
from ..group.process_group import SimulatedProcessGroup
from ..group.slot import first_in_line
from ..rank.rank import this_process
from .call_packing import pack
from .store_keys import REPORTS, growing_pauses, key_prefix, open_store, sleep

# States of a rank at its end.
ENDED = ("ends", "gone")
# The kind of the call in which the members of a group wait for each other, as they create it.
NEW = "new_group"
# Seconds of waiting before a rank publishes its state; and of equal states if some ranks have ended: one may have
# failed, and the launcher be about to end the others.
_SOON, _PATIENCE = 0.1, 1.0
# Seconds for the launcher to end all processes after one has failed, so that only one rank reports; and for the other
# ranks to end after the one with the store.
GRACE = 5.0

# All detectors; the last is the current one.
_all: list[DeadlockDetector] = []
# The exit code of this process, once known.
_code = 0


@dataclass
class PublishedState:
    """The published state of one rank.

    number  how often the rank has published a new state.
    looks   how often it has looked in vain for all that it waits for, in this state.
    state   "runs", "waits", "ends" (all but for its pending calls) or "gone".
    told    the state for the text of a deadlock; ``open`` the calls that are pending at the rank's end.
    held    pending messages behind an earlier one, each with that message: NCCL runs a pair's messages in order.
    """

    number: int
    looks: int
    state: str
    told: faults.RankState
    open: list[CollectiveCall]
    held: list[tuple[CollectiveCall, CollectiveCall]]


def rank_states(found: Sequence[PublishedState]) -> list[faults.RankState]:
    """Return the states of all ranks for the text of a deadlock."""
    standings = []
    message_of = attrgetter("group", "pair", "seq")
    for rank, state in enumerate(found):
        one = state.told
        if (call := one.call) is not None and call.is_message:
            halves = [
                held for at in call.pair for held in found[at].held if message_of(held[0]) == message_of(call)
            ]
            for half, first in halves[:1]:
                call = first if half.rank == rank else call
                call.memo["held"] = half, first
                one = replace(one, call=call)
        standings.append(one)
    return standings


class DeadlockDetector:
    """Publishes the state of a rank, and reads those of the other members of a default group.

    store    has the states, and the calls of all groups.
    pending  the rank's calls (each a ProcessSlot) that are not completed, in order.
    sent     messages that may not have been received, with their stores and keys.
    """

    def __init__(self, group: SimulatedProcessGroup, number: int) -> None:
        self.group, self.rank = group, group.rank()
        self.store = c10d.PrefixStore(key_prefix(str(number)), open_store(group))
        self.pending: dict[Any, None] = {}
        self.sent: list[tuple[c10d.Store, str, CollectiveCall]] = []
        self._visits, self._seqs = LineVisits(), dict[str, int]()
        self._last: CollectiveCall | None = None
        self._names = [f"state/{rank}" for rank in range(group.size())]
        # Threads that have made calls; those that wait, each with its call; and those that have looked for it.
        self._callers: dict[int, threading.Thread] = {}
        self._waiting: dict[int, CollectiveCall] = {}
        self._looked: set[int] = set()
        self._state, self._number, self._looks = "runs", 0, 0
        # The first of the other ranks' states that are the same since then.
        self._first: list[PublishedState] = []
        self._since = 0.0
        self._lock = threading.Lock()
        self._publish("runs")
        Finalize(None, self.end, exitpriority=100)

    def record_call(self, call: CollectiveCall, slot: Any) -> None:
        """Record a call of the rank, pending in ``slot``."""
        self.pending[slot] = None
        self._visits.add(call)
        if not call.is_message:
            self._seqs[call.group] = call.seq
        if call.kind != NEW:
            self._last = call
        thread = threading.current_thread()
        self._callers[thread.ident or 0] = thread

    # Publishing.

    def _publish(self, state: str, *, again: bool = False) -> None:
        """Publish the state; ``again`` after a look in vain, if nothing else has changed."""
        self._number, self._looks = self._number + (not again), self._looks + 1 if again else 0
        self._state = state
        pending = [slot.call for slot in tuple(self.pending)]
        call = next(iter(self._waiting.values()), None)
        error = _error() if state == "gone" else None
        passes = 0 if this_process.rank is None else this_process.rank.passes
        told = faults.RankState(
            self.rank, call, "", error, self._visits.by_place(), self._seqs, self._last, passes
        )
        unmet = [*pending, *(call for *_, call in self.sent)] if state in ENDED else []
        held = [(call, first) for call in pending if (first := first_in_line(call)) is not call]
        now = PublishedState(self._number, self._looks, state, told, unmet, held)
        self.store.set(self._names[self.rank], pack(now))  # type: ignore[arg-type]  # bytes are taken too

    def publish_progress(self) -> None:
        """Publish the state again if this rank waits: a call no longer blocks others."""
        with self._lock:
            if self._state != "runs":
                self._publish(self._state)

    def _record_look(self, call: CollectiveCall) -> None:
        """Record that this thread has looked for ``call`` in vain. The rank waits once all its calling threads do."""
        with self._lock:
            here = threading.get_ident()
            is_new = self._waiting.get(here) is not call
            self._waiting[here] = call
            self._looked.add(here)
            others = {number for number, thread in self._callers.items() if thread.is_alive()}
            if is_new and others <= self._waiting.keys() and threading.main_thread().ident in self._waiting:
                self._publish("waits")
            elif self._state == "waits" and self._looked >= self._waiting.keys():
                self._publish("waits", again=True)
                self._looked.clear()

    def _record_end_of_wait(self) -> None:
        with self._lock, suppress(Exception):  # the store may be gone
            if self._waiting.pop(threading.get_ident(), None) is not None and self._state == "waits":
                self._publish("runs")

    # Checking.

    def read_states(self) -> list[PublishedState]:
        """Return the last published state of each rank; [] before all ranks have begun."""
        if not self.store.check(self._names):
            return []
        return list(map(pickle.loads, c10d.Store.multi_get(self.store, self._names)))

    def find_deadlock(self) -> list[PublishedState]:
        """Return the states of all ranks if none can go on; else [].

        Then each rank waits, or has ended, and has looked twice since all states are the same.
        """
        found = self.read_states()
        if [one.number for one in found] != [one.number for one in self._first]:
            self._first, self._since = found, monotonic()
        if any(one.state in ENDED for one in found) and monotonic() < self._since + _PATIENCE:
            return []
        for one, first in zip(found, self._first, strict=True):
            if one.state == "runs" or one.state != "gone" and one.looks < first.looks + 2:
                return []
        return found

    def wait(
        self, call: CollectiveCall, ready: Callable[[], bool], timeout: timedelta | None, shown: bool = True
    ) -> bool:  # fmt: skip
        """Wait until ``ready()``; return False after ``timeout``. Raises Deadlock if no rank can go on.

        shown   whether to publish the wait.
        """
        limit = (self.group.timeout if timeout is None else timeout).total_seconds()
        began = monotonic()
        try:
            for pause in growing_pauses():
                for slot in tuple(self.pending):
                    if slot.call.is_message:  # others may wait for it
                        slot.is_completed()
                if ready():
                    break
                waited = monotonic() - began
                if waited > limit:
                    return False
                if shown and waited > _SOON:
                    self._record_look(call)
                    if found := self.find_deadlock():
                        self._report(call, found)
                sleep(pause)
            return True
        finally:
            self._record_end_of_wait()

    def _report(self, call: CollectiveCall, found: list[PublishedState]) -> NoReturn:
        """Raise Deadlock: in the first rank that comes here, and after a while in the others."""
        standings = rank_states(found)
        report = faults.deadlock_report(standings, self.group.timeout)
        error = report.attach_to(Deadlock(str(report)))
        error.waits = faults.wait_graph(standings)  # type: ignore[attr-defined]  # as World does
        if (own := this_process.rank) is not None and own.flight is not None:
            own.flight.write()
        if call.on_deadlock is not None:
            call.on_deadlock()  # now: the launcher may end this process soon
        if self.store.add("told", 1) > 1:
            sleep(GRACE)
        raise error

    # The end of the process.

    def end(self) -> None:
        """Publish the end of this process."""
        with suppress(Exception):  # the process with the store may have ended
            if _error() is None:
                self._wait_for_others()
            with self._lock:
                self._publish("gone")

    def _wait_for_others(self) -> None:
        """Stay while others may still come to this rank's calls or use its store. Report calls that are never met."""
        has_store = self.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
        end, again = monotonic() + GRACE, False
        for pause in growing_pauses():
            for slot in tuple(self.pending):
                slot.is_completed()
            self.sent = [one for one in self.sent if one[0].check([one[1]])]
            with self._lock:
                self._publish("ends", again=again)
            again, found = True, self.read_states()
            serves = has_store and monotonic() < end and sum(one.state != "gone" for one in found) > 1
            if not (self.pending or self.sent or serves) or any(one.told.error for one in found):
                return
            if all(one.state in ENDED for one in found) and (found := self.find_deadlock()):
                unmet = [call for one in found for call in one.open]
                if unmet and unmet[0].rank == self.rank:
                    _report_unmet_calls(unmet)
                return
            sleep(pause)


def start_detector(group: SimulatedProcessGroup) -> DeadlockDetector:
    """Return the active detector, or start one for ``group``, the new default group."""
    if (found := active_detector()) is None:
        found = DeadlockDetector(group, len(_all) + 1)
        _all.append(found)
    return found


def set_exit_code(exit_code: int) -> None:
    """Set the exit code of this process, whose program has ended."""
    global _code
    _code = exit_code


def exit_code() -> int:
    """Return the exit code, which unmet calls may have changed."""
    return _code


def _error() -> tuple[str, str] | None:
    """Return the name and text of the error that ends this process; None if there is none."""
    # A child of multiprocessing is still handling its error.
    error = sys.__dict__.get("last_value") or sys.exc_info()[1] or (SystemExit(_code) if _code else None)
    if error is None or isinstance(error, SystemExit) and not error.code:
        return None
    return type(error).__name__, str(error)


def active_detector() -> DeadlockDetector | None:
    """Return the detector of the current default group; None if there is no group."""
    return _all[-1] if _all and not _all[-1].group.destroyed else None


def _report_unmet_calls(unmet: list[CollectiveCall]) -> None:
    """Print the error of unmet calls as the launcher of ranks in one process does, and fail."""
    global _code
    _code = 1
    error = faults.unmet_error(unmet)
    sys.stderr.write("".join(traceback.format_exception_only(error)))
    leave_report(error.report)  # type: ignore[attr-defined]  # attached there
    if parent_process() is not None:  # a child of multiprocessing, which ignores the exit code
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):  # closed, or a broken pipe
                stream.flush()
        os._exit(_code)


def leave_report(report: faults.Report | None) -> None:
    """Leave a report for the launcher, which prints it last; only the first report of an attempt counts."""
    folder, attempt = os.environ.get(REPORTS), os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    if report is not None and folder:
        with suppress(OSError), open(os.path.join(folder, attempt), "x", encoding="utf-8") as file:
            file.write(f"{report.fault}\n{report}")
