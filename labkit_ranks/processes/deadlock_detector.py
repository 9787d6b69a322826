"""A lookout for deadlocks among processes: the group's own store says which ranks wait, and for what.

A rank that has waited for a moment writes a note of where it stands, and reads the notes of the others. No rank will
ever go on if each of them waits or has ended, nothing that one waits for is on its way, and all of this was so a look
before. A rank that is busy writes nothing, and costs nothing.

The main thread may also wait for something of its own process (a lock, a queue, an event). That is seen as it is where
ranks share a process: the thread takes turns (:mod:`labkit.turns`), alone.
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
from typing import Any, Protocol

from torch._C import _distributed_c10d as c10d

from labkit import turns
from labkit.turns import Deadlock
from labkit.turns.locks import lock_watch

from ..calls import faults
from ..calls.call import CollectiveCall
from ..calls.visits import LineVisits
from ..group.process_group import SimulatedProcessGroup
from ..rank.rank import internal_work, this_process
from . import call_packing, published_states
from .published_states import NEW, OWN, STORE, PublishedState, call_key
from .store_keys import REPORTS, KeysEvent, growing_pauses, key_prefix, sleep

# Seconds after which a rank that waits writes it down, and between two looks.
SOON, _BEAT = 0.1, 0.05
_PATIENCE = 20  # looks at ranks that have ended
# Seconds that the launcher gets to end all processes, when one has said why: then one rank tells, not all.
_GRACE = 5.0

# As it is in C++: here it is asked for what is there.
_get = c10d.Store.get

# The last is that of now. All are kept for good: a forked child drops what is to be called at the end, and would take
# gloo apart, whose threads it has not.
_all: list[DeadlockDetector] = []
_main: turns.ScheduledTask | None = None  # this process's main thread
# The exit code of this process, once it is known: what it is then said to be is not lost.
_code = 0


class PendingCall(Protocol):
    """A call that may still wait for others; ``lost`` is what gloo said when a member was gone.

    line   one object for those that go one after the other, as they were made; None of others.
    """

    @property
    def call(self) -> CollectiveCall: ...

    @property
    def lost(self) -> Exception | None: ...

    @property
    def line(self) -> object: ...

    def is_completed(self) -> bool: ...


class DeadlockDetector:
    """The members of a default group: its store, and how far this rank has come.

    issued   how many calls it has made, of each group and each pair in it.
    """

    def __init__(self, group: SimulatedProcessGroup, number: int) -> None:
        self.group, self.number = group, number
        self.rank, self.size = group.rank(), group.size()
        self.store = c10d.PrefixStore(key_prefix(f"lookout/{number}"), group.store)
        self.issued: Counter[Any] = Counter()
        self.visits = LineVisits()
        self.last: CollectiveCall | None = None
        # Its calls that are not over, as they were made; who has one that is over takes it out.
        self.open: dict[PendingCall, None] = {}
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

    def record_call(self, call: CollectiveCall, slot: PendingCall | None = None) -> None:
        """This rank has made a call, and will have what comes of it in ``slot``."""
        if slot is not None:
            self.open[slot] = None
        self.issued[call_key(call)] += 1
        self.visits.add(call)
        if call.kind != NEW:
            self.last = call
        thread = threading.current_thread()
        self._callers[thread.ident or 0] = thread

    def first_in_line(self, slot: PendingCall) -> PendingCall:
        """The first of the line in which ``slot`` stands; itself, if that is none."""
        line = slot.line
        return slot if line is None else next((one for one in self.pending_calls() if one.line == line), slot)

    def publish_progress(self) -> None:
        """A call stands in nobody's way any more: this is written down, if anybody looks."""
        with self._lock, suppress(Exception):  # the store is gone
            if self._state == "waits":
                self._write("waits")

    # What it writes.

    def end(self) -> None:
        """This process ends."""
        _leave_scheduler()
        try:
            with self._lock:
                self._write("ended")
            if _error() is None:
                self._wait_for_others()
        except Exception:
            return  # the process that keeps the store has ended, too

    def _wait_for_others(self) -> None:
        """While others may still come to what this rank called, be there; tell of what nobody came to."""
        for pause in growing_pauses():
            if not (open_calls := self.pending_calls()):
                return
            found = self.read_states()
            if any(one.error for one in found):
                return
            if all(one.state == "ended" for one in found):
                # A member that has ended is gone for gloo, perhaps before this rank has read that nobody comes.
                if (unmet := published_states.unmet_calls(found)) and unmet[0].rank == self.rank:
                    _report_unmet_calls(unmet)
                if unmet or all(slot.lost is not None for slot in open_calls):
                    return
            sleep(pause)

    def pending_calls(self) -> list[PendingCall]:
        return [slot for slot in tuple(self.open) if not slot.is_completed()]

    def record_wait(self, call: CollectiveCall) -> None:
        """This thread waits in ``call``; all have to, until it is written down."""
        with self._lock:
            self._looks = 0
            self._waiting[threading.get_ident()] = call
            others = {number for number, thread in self._callers.items() if thread.is_alive()}
            if others <= self._waiting.keys() and threading.main_thread().ident in self._waiting:
                self._write("waits")

    def count_look(self) -> None:
        """This rank has looked into a store for what it waits for, and it was not there."""
        with self._lock:
            self._looks += 1
            if self._state == "waits":
                self._write("waits", again=True)

    def explain_own_wait(self, what: str) -> str | None:
        """Why the main thread will never go on, which waits for ``what`` and for nobody here; None if it may."""
        if self._state != "waits":
            call = CollectiveCall(OWN)
            call.group = what
            self.record_wait(call)
        found = self.find_deadlock()
        if found is None:
            return None
        if not self.claims_report():
            sleep(_GRACE)
        return str(faults.deadlock_report(published_states.rank_states(found), self.group.timeout))

    def record_progress(self) -> None:
        with self._lock:
            self._waiting.pop(threading.get_ident(), None)
            self._before = []
            self._write("runs")

    def _write(self, state: str, *, again: bool = False) -> None:
        self._written += not again
        self._state = state
        ended, open_calls = state == "ended", self.pending_calls()
        state_now = PublishedState(
            self._written,
            self._looks,
            state,
            waits=list(self._waiting.values()),
            open=[slot.call for slot in open_calls] if ended else [],
            held=[
                (one.call, first.call) for one in open_calls if (first := self.first_in_line(one)) is not one
            ],
            issued=dict(self.issued),
            came=self.visits.by_place(),
            last=self.last,
            error=_error() if ended else None,
            passes=0 if this_process.rank is None else this_process.rank.passes,
        )
        self.store.set(str(self.rank), call_packing.pickle_facts(state_now))  # type: ignore[arg-type]  # bytes are taken too

    # What it reads.

    def read_states(self) -> list[PublishedState]:
        """The last note of each rank."""
        return [
            pickle.loads(_get(self.store, str(rank))) if self.store.check([str(rank)]) else PublishedState()
            for rank in range(self.size)
        ]

    def find_deadlock(self) -> list[PublishedState] | None:
        """The notes of all ranks, if none of them will ever go on; else None."""
        found = self.read_states()
        before, self._before = self._before, [one.number for one in found]
        self._same = self._same + 1 if before == self._before else 0
        looks = [one.looks for one in found]
        if not self._same:
            self._looks_before = looks
        states = [one.state for one in found]
        # A rank that has ended may have failed, and the launcher be about to end them all.
        if "runs" in states or self._same < (_PATIENCE if "ended" in states else 1):
            return None
        if any(not published_states.is_stuck(call, found) for one in found for call in one.waits):
            return None
        # A rank that waits in a store must have looked, from beginning to end, since all stood as they stand.
        for one, look, then in zip(found, looks, self._looks_before, strict=True):
            if one.waits_in_a_store and look < then + 2:
                return None
        return found

    def claims_report(self) -> bool:
        """Whether this rank is the one who tells."""
        return bool(self.store.add("told", 1) == 1)

    # How it waits.

    def wait_for_members(self, group: SimulatedProcessGroup, name: str) -> None:
        """Wait until all members are about to connect, which could be told of no deadlock. ``name`` is theirs alone."""
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
        self,
        call: CollectiveCall,
        ready: Callable[[], bool],
        over: Any,
        timeout: timedelta | None,
        shown: bool = True,
    ) -> bool:
        """Wait until ``ready()``; False if time ran out. Raises Deadlock if no rank can go on.

        over    an Event, or what stands for one: when it is set, ``ready()`` is worth asking.
        shown   whether the others may be told that this rank waits.
        """
        end = monotonic() + (self.group.timeout if timeout is None else timeout).total_seconds()
        if shown:
            self.record_wait(call)
        try:
            while not (ready() or over.wait(_BEAT) and ready()):
                # If it is set, a neighbour is gone: the launcher will end this process, or the others have.
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
                    continue  # the process that kept the store is gone; gloo will say so
                if found is not None:
                    standings = published_states.rank_states(found)
                    report = faults.deadlock_report(standings, self.group.timeout)
                    error = report.attach_to(Deadlock(str(report)))
                    error.record_wait = faults.wait_graph(standings)  # type: ignore[attr-defined]  # as World's
                    if (own := this_process.rank) is not None and own.flight is not None:
                        own.flight.write()
                    if call.on_deadlock is not None:
                        call.on_deadlock()  # now: the launcher may end this process before it is told
                    if self.claims_report() or not over.wait(_GRACE):
                        raise error
            return True
        finally:
            with suppress(Exception):  # the store is gone
                self.record_progress()

    def missing(self, call: CollectiveCall) -> list[int]:
        """The ranks that have not come to it, as far as is known of those that wait themselves."""
        return published_states.missing_ranks(call, self.read_states())


def start_detector(group: SimulatedProcessGroup) -> DeadlockDetector:
    """The lookout of ``group``: one begins with the first group, the default one, and with the next after its end."""
    if (found := active_detector()) is None:
        found = DeadlockDetector(group, len(_all) + 1)
        _all.append(found)
        _enter_scheduler()
    return found


def set_exit_code(exit_code: int) -> None:
    """This process has run its program, and ends by ``code`` when what is to be done at its end is done."""
    global _code
    _code = exit_code


def exit_code() -> int:
    """The exit code in the end: another one if nobody came to what this process called."""
    return _code


def _error() -> tuple[str, str] | None:
    """The name and the text of what this process fails by; None if it does not."""
    # A child of multiprocessing is still within what it has raised.
    error = sys.__dict__.get("last_value") or sys.exc_info()[1] or (SystemExit(_code) if _code else None)
    if error is None or isinstance(error, SystemExit) and not error.code:
        return None
    return type(error).__name__, str(error)


def _enter_scheduler() -> None:
    """From now on the lookout sees what the main thread waits for."""
    global _main
    in_main = threading.current_thread() is threading.main_thread()
    if _main is None and in_main and turns.current_task() is None:
        task_group = turns.TaskGroup(watch=lock_watch, explain=_explain)
        _main = task_group.add_thread("main")
        _main.on_turn = _go_on


def _leave_scheduler() -> None:
    global _main
    task, _main = _main, None
    if task is not None and turns.current_task() is task:
        task.leave_thread()


def _explain(_: str) -> str | None:
    """The text of a deadlock in which the main thread waits for something of this process's own; None: there is none.

    Without a group it may be anything.
    """
    if _main is None or (lookout := active_detector()) is None:
        return None
    what = _main.waits_for
    with internal_work():
        try:
            return lookout.explain_own_wait(what)
        except Exception:
            return None  # the process that kept the store is gone


def _go_on() -> None:
    if (lookout := active_detector()) is not None and lookout._state == "waits":
        with internal_work(), suppress(Exception):  # the store is gone
            lookout.record_progress()


def active_detector() -> DeadlockDetector | None:
    """That of the group that this process has, whose members see each other wait; None where there is none."""
    return _all[-1] if _all and not _all[-1].group.destroyed else None


def _report_unmet_calls(unmet: list[CollectiveCall]) -> None:
    """Say it as the launcher of ranks in one process does, and fail."""
    global _code
    _code = 1
    error = faults.unmet_error(unmet)
    sys.stderr.write("".join(traceback.format_exception_only(error)))
    leave_report(error.report)  # type: ignore[attr-defined]  # put on it there
    if parent_process() is not None:  # of multiprocessing, which asks nobody for a code
        # A thread of ours that still waits in gloo would make Python abort as it ends.
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):  # closed, or a pipe that nobody reads
                stream.flush()
        os._exit(_code)


def leave_report(report: faults.Report | None) -> None:
    """Leave a report for the launcher, which says it last, below the name of its fault; the first one counts."""
    folder, attempt = os.environ.get(REPORTS), os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    if report is not None and folder:
        with suppress(OSError), open(os.path.join(folder, attempt), "x", encoding="utf-8") as file:
            file.write(f"{report.fault}\n{report}")
