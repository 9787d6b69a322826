"""Detects deadlocks among processes: ranks publish their states in the group's store.

A rank that has waited for a moment publishes what it waits for, and reads the states of the others. No rank can go on
if each of them waits or has ended, nothing that one waits for is under way, and all of this was so one check before.
Busy ranks publish nothing, nor does a rank that waits for something of its own process (a lock, a queue, an event).
"""

from __future__ import annotations

import atexit
import os
import pickle
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from multiprocessing.process import parent_process
from multiprocessing.util import Finalize
from time import monotonic
from typing import Any

from torch._C import _distributed_c10d as c10d

from labkit.turns import Deadlock

from ..calls import faults
from ..calls.call import CollectiveCall
from ..calls.visits import LineVisits
from ..group.process_group import SimulatedProcessGroup
from ..rank.rank import this_process
from . import call_packing, published_states
from .published_states import NEW, STORE, PublishedState, call_key
from .store_keys import REPORTS, KeysEvent, growing_pauses, key_prefix, sleep

# Seconds of waiting before a rank publishes its state, and between two checks.
SOON, _BEAT = 0.1, 0.05
_PATIENCE = 20  # checks of ranks that have ended
# Seconds for the launcher to end all processes after a report, so that only one rank reports.
_GRACE = 5.0

# C++'s own get(): the patched one would record a wait.
_get = c10d.Store.get

# All detectors; the last is the current one. Keep them: a forked child drops exit callbacks, and destroying gloo
# there would crash.
_all: list[DeadlockDetector] = []
# The exit code of this process, once known.
_code = 0


class DeadlockDetector:
    """Publishes and checks the states of a default group's members.

    issued   the number of calls of this rank, by group and pair.
    """

    def __init__(self, group: SimulatedProcessGroup, number: int) -> None:
        self.group, self.number = group, number
        self.rank, self.size = group.rank(), group.size()
        self.store = c10d.PrefixStore(key_prefix(f"detector/{number}"), group.store)
        self.issued: Counter[Any] = Counter()
        self.visits = LineVisits()
        self.last: CollectiveCall | None = None
        # Pending calls (each a ProcessSlot) in order; completed ones are removed.
        self.open: dict[Any, None] = {}
        self._callers: dict[int, threading.Thread] = {}
        self._waiting: dict[int, CollectiveCall] = {}
        self._written = self._looks = 0
        self._state = "runs"
        self._looks_before: list[int] = []
        self._before: list[Any] = []
        self._same = 0
        self._lock = threading.Lock()
        self._write("runs")
        Finalize(None, self.end, exitpriority=100)

    def record_call(self, call: CollectiveCall, slot: Any | None = None) -> None:
        """Record a call of the rank, with a ``slot`` if the call may stay pending."""
        if slot is not None:
            self.open[slot] = None
        self.issued[call_key(call)] += 1
        self.visits.add(call)
        if call.kind != NEW:
            self.last = call
        thread = threading.current_thread()
        self._callers[thread.ident or 0] = thread

    def first_in_line(self, slot: Any) -> Any:
        """Return the first pending message in the queue of ``slot``, or ``slot`` itself."""
        line = slot.line
        return slot if line is None else next((one for one in self.pending_calls() if one.line == line), slot)

    def publish_progress(self) -> None:
        """Publish the state again if this rank waits: a call no longer blocks others."""
        with self._lock, suppress(Exception):  # the store may be gone
            if self._state == "waits":
                self._write("waits")

    # Publishing.

    def end(self) -> None:
        """Publish the end of this process."""
        try:
            with self._lock:
                self._write("ended")
            if _error() is None:
                self._wait_for_others()
        except Exception:
            return  # the process with the store may have ended

    def _wait_for_others(self) -> None:
        """Stay while others may still come to this rank's calls, and report calls that are never met."""
        for pause in growing_pauses():
            if not (open_calls := self.pending_calls()):
                return
            found = self.read_states()
            if any(one.error for one in found):
                return
            if all(one.state == "ended" for one in found):
                # For gloo, a member that has ended is gone, perhaps before this rank has read all states.
                if (unmet := published_states.unmet_calls(found)) and unmet[0].rank == self.rank:
                    _report_unmet_calls(unmet)
                if unmet or all(slot.lost is not None for slot in open_calls):
                    return
            sleep(pause)

    def pending_calls(self) -> list[Any]:
        return [slot for slot in tuple(self.open) if not slot.is_completed()]

    def record_wait(self, call: CollectiveCall) -> None:
        """Record a wait of this thread in ``call``, and publish it once all calling threads wait."""
        with self._lock:
            self._looks = 0
            self._waiting[threading.get_ident()] = call
            others = {number for number, thread in self._callers.items() if thread.is_alive()}
            if others <= self._waiting.keys() and threading.main_thread().ident in self._waiting:
                self._write("waits")

    def count_look(self) -> None:
        """Count a look into a store that did not find the awaited key."""
        with self._lock:
            self._looks += 1
            if self._state == "waits":
                self._write("waits", again=True)

    def record_progress(self) -> None:
        with self._lock:
            self._waiting.pop(threading.get_ident(), None)
            self._before = []
            self._write("runs")

    def _write(self, state: str, *, again: bool = False) -> None:
        self._written += not again
        self._state = state
        ended, open_calls = state == "ended", self.pending_calls()
        lines = [(one, self.first_in_line(one)) for one in open_calls]
        state_now = PublishedState(
            self._written, self._looks, state, waits=list(self._waiting.values()), last=self.last,
            open=[slot.call for slot in open_calls] if ended else [],
            held=[(one.call, first.call) for one, first in lines if first is not one],
            issued=dict(self.issued), came=self.visits.by_place(), error=_error() if ended else None,
            passes=0 if this_process.rank is None else this_process.rank.passes,
        )  # fmt: skip
        self.store.set(str(self.rank), call_packing.pickle_facts(state_now))  # type: ignore[arg-type]  # bytes are taken too

    # Checking.

    def read_states(self) -> list[PublishedState]:
        """Return the last published state of each rank."""
        return [
            pickle.loads(_get(self.store, str(rank))) if self.store.check([str(rank)]) else PublishedState()
            for rank in range(self.size)
        ]

    def find_deadlock(self) -> list[PublishedState] | None:
        """Return the states of all ranks if none can go on; else None."""
        found = self.read_states()
        before, self._before = self._before, [one.number for one in found]
        self._same = self._same + 1 if before == self._before else 0
        looks = [one.looks for one in found]
        if not self._same:
            self._looks_before = looks
        states = [one.state for one in found]
        # A rank may have failed, and the launcher be about to end all of them.
        if "runs" in states or self._same < (_PATIENCE if "ended" in states else 1):
            return None
        if any(not published_states.is_stuck(call, found) for one in found for call in one.waits):
            return None
        # A rank that waits in a store must have looked completely since all states are the same.
        for one, look, then in zip(found, looks, self._looks_before, strict=True):
            if one.waits_in_a_store and look < then + 2:
                return None
        return found

    def claims_report(self) -> bool:
        """Whether this rank is the first to ask, and so reports the deadlock."""
        return bool(self.store.add("told", 1) == 1)

    # Waiting.

    def wait_for_members(self, group: SimulatedProcessGroup, name: str) -> None:
        """Wait until all members are about to connect: C++ detects no deadlock there. ``name`` is the group's."""
        call = CollectiveCall(NEW)
        call.group, call.seq, call.rank, call.ranks = name, 1, group.ranks[group.rank()], group.ranks
        call.locate()
        self.record_call(call)
        store = c10d.PrefixStore(key_prefix(f"gather/{name}"), group.store)
        store.set(str(group.rank()), "")
        there = KeysEvent(store, [str(member) for member in range(group.size())])
        if there.wait(SOON) or self.wait(call, there.is_set, there, group.timeout):
            return
        raise faults.timeout_error(call, group.timeout, self.missing(call))

    def wait(
        self, call: CollectiveCall, ready: Callable[[], bool], over: Any, timeout: timedelta | None, shown: bool = True
    ) -> bool:  # fmt: skip
        """Wait until ``ready()``; return False after ``timeout``. Raises Deadlock if no rank can go on.

        over    an Event, or its equivalent: once set, ``ready()`` is worth asking.
        shown   whether to publish the wait.
        """
        end = monotonic() + (self.group.timeout if timeout is None else timeout).total_seconds()
        if shown:
            self.record_wait(call)
        try:
            while not (ready() or over.wait(_BEAT) and ready()):
                # If set, a neighbour is gone: the launcher will end this process, or the others have ended.
                if over.is_set():
                    threading.Event().wait(_BEAT)
                if monotonic() > end:
                    return False
                if not shown:
                    continue
                try:
                    if call.kind.startswith(STORE):
                        self.count_look()
                    found = self.find_deadlock()
                except Exception:
                    continue  # the process with the store is gone; gloo will report it
                if found is not None:
                    standings = published_states.rank_states(found)
                    report = faults.deadlock_report(standings, self.group.timeout)
                    error = report.attach_to(Deadlock(str(report)))
                    error.waits = faults.wait_graph(standings)  # type: ignore[attr-defined]  # as World does
                    if (own := this_process.rank) is not None and own.flight is not None:
                        own.flight.write()
                    if call.on_deadlock is not None:
                        call.on_deadlock()  # now: the launcher may end this process soon
                    if self.claims_report() or not over.wait(_GRACE):
                        raise error
            return True
        finally:
            with suppress(Exception):  # the store may be gone
                self.record_progress()

    def missing(self, call: CollectiveCall) -> list[int]:
        """Return the ranks that have not come to ``call``, by the published states."""
        return published_states.missing_ranks(call, self.read_states())


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
        # Python would abort at its end because of a labkit thread that still waits in gloo.
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
