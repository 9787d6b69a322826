"""A participant as its own thread has it: it waits, leaves, and knows which participant it is."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf
from time import monotonic  # for users' own timeouts alone
from typing import Any

from .ring import Ring, stalled, watched
from .turn import NOTHING, Ended, Party, State, Turn, Wait, never

# Seconds after which those who wait look again by themselves: a thread outside may have helped them unseen.
_BEAT = 0.1


class Member(Turn):
    """One participant of a :class:`.baton.Baton`; its own thread gets it from :func:`participant`."""

    def __init__(self, party: Party, ring: Ring, name: str, begin: Callable[[], object]) -> None:
        # Starting a thread waits until it runs: unseen.
        super().__init__(party, name, unseen()(begin))
        self.ring = ring

    def wait(
        self,
        ready: Callable[[], bool],
        what: object,
        timeout: float | None = None,
        lock: int = 0,
        take: Callable[[], bool] | None = None,
        inside: bool = False,
        patience: Callable[[], bool] | None = None,
    ) -> bool:
        """Hand the baton on, until it is back and ``ready()``; returns False if ``timeout`` seconds were over before.

        ready      called by the thread that hands the baton on: quick, and never an error.
        what       the thing that is waited for, whose str() goes into a deadlock's message: "Queue.get at train.py:12";
                   "" if the message is to leave it out.
        timeout    in seconds. The wait ends at the next turn after it.
        lock       the id of the lock that is waited for, if it is one.
        take       takes the thing that is ready; False if a thread outside was quicker. Default: ``ready`` itself.
        inside     only another participant can make it ready: no thread outside could help.
        patience   called now and then while another has the baton; when it says False, that one is ended.
        """
        deadline = None if timeout is None else monotonic() + timeout
        try:
            while True:
                self._hand_on(Wait(ready, what, timeout is not None, lock, inside, patience))
                self.sleep(deadline)
                if (take or ready)():
                    return True
                if deadline is not None and monotonic() >= deadline:
                    return False
        finally:
            self.waits = NOTHING  # else the objects that ``ready`` refers to would live until the next wait

    def away(self, function: Callable[[], Any]) -> Any:
        """The result of ``function()``, which waits for a thread that takes no part; the others go on meanwhile."""
        self._hand_on(Wait(never, ends=True))
        try:
            with unseen():
                return function()
        finally:
            if isinstance(sys.exc_info()[1], (Exception, type(None))):
                self._come_back()
            else:
                self._break_off()

    def _hand_on(self, wait: Wait) -> None:
        with self.ring:
            if self.last and self.error is None:
                self.error = Ended()
            self.raise_error()
            self.state, self.waits = State.WAITS, wait
            self.ring.hand_on(self)

    def _come_back(self) -> None:
        with self.ring:
            if not self.over:
                self.state = State.READY
                self.ring.resume()
        self.sleep()

    def sleep(self, deadline: float | None = None) -> None:
        """Return with the baton. After ``deadline`` it does not matter any more whether what it waits for is there."""
        ends = inf if deadline is None else deadline
        try:
            while not self._gate.passed(_BEAT if ends == inf else min(_BEAT, max(0, ends - monotonic()))):
                with self.ring:
                    if monotonic() >= ends:
                        ends = inf
                        if self.state is State.WAITS:
                            self.state = State.READY
                    patience = self.waits.patience
                    if patience is not None and self.state is State.WAITS and not patience():
                        self.ring.end_holder()
                    self.ring.resume()
                    self.ring.judge()
        except BaseException:
            self._break_off()
            raise
        self._come()
        self.raise_error()

    def take(self) -> None:
        """From now on this thread is this participant."""
        with self.ring:
            self.thread = threading.get_ident()
            self.raise_error()
        here.member = self
        self._come()

    def leave(self) -> None:
        """This thread takes no part any more."""
        here.member = None
        with self.ring:
            self.finish()
            self.ring.hand_on(self)

    def _come(self) -> None:
        """This thread has the baton again."""
        if self.arrive is not None and not self.over:
            # As unseen() does, without what a context costs at every change of hands.
            seen, here.member = here.member, None
            try:
                self.arrive()
            finally:
                here.member = seen
        self.called = False

    def _break_off(self) -> None:
        """This thread was interrupted and has no baton: nobody takes turns any more."""
        here.member = None
        self.ring.abandon()

    def raise_error(self) -> None:
        """Raise the error that another has left for it."""
        if self.error is not None:
            error, self.error = self.error, None
            if isinstance(error, Ended):
                here.member = None  # while it unwinds it may take locks like any other thread
            raise error


class _Here(threading.local):
    """The participant that this thread is."""

    member: Member | None = None
    forks: Member | None = None  # while it forks


here = _Here()


def participant() -> Member | None:
    """The participant that this thread is; None if it takes no turns."""
    return here.member


@contextmanager
def unseen() -> Iterator[None]:
    """Inside, this thread keeps the baton, also while it waits."""
    member, here.member = here.member, None
    try:
        yield
    finally:
        here.member = member


def _hold() -> None:
    """Keep the baton while this thread forks: before it does, IPython joins a thread, and nobody else may fork then."""
    here.forks, here.member = here.member, None


def _go_on() -> None:
    here.member, here.forks = here.forks, None


def _forget() -> None:
    """In a forked child there is only this thread, and it takes no turns."""
    member, here.member, here.forks = here.forks, None, None
    stalled.clear()
    for ring in {*watched} | ({member.ring} if member is not None else set()):
        ring.dissolve()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_hold, after_in_parent=_go_on, after_in_child=_forget)
