"""A participant's turn: whether it runs or waits, what it waits for, and the gate at which its thread sleeps."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import Enum, auto
from functools import cache
from typing import Any, NamedTuple

# As C has them: a machine that watches locks is not to see those of the turns themselves.
_acquire, _release = type(threading.Lock()).acquire, type(threading.Lock()).release


class Ended(BaseException):
    """Ends a participant whose call was interrupted. ``except Exception`` lets it pass."""


class State(Enum):
    NEW = auto()
    RUNS = auto()  # it has the baton
    WAITS = auto()  # it goes on once it is given the baton and what it waits for is there
    READY = auto()  # it goes on once it is given the baton
    OVER = auto()


def never() -> bool:
    """The ``ready`` of a :class:`Wait` that no participant can end."""
    return False


class Wait(NamedTuple):
    """A wait of a participant, by the arguments of :meth:`.member.Member.wait`."""

    ready: Callable[[], bool]
    what: object = ""
    ends: bool = False  # it may end without anybody's help: by time, or by a thread that takes no part
    lock: int = 0
    inside: bool = False
    patience: Callable[[], bool] | None = None

    @property
    def timed(self) -> bool:
        """Whether it is over at some time, whatever the others do."""
        return self.ends and self.ready is not never


NOTHING = Wait(never)


class Gate:
    """A gate at which a thread sleeps until another opens it. It closes behind each that passes."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        _acquire(self._lock)

    def open(self) -> None:
        """Let one thread pass, now or later."""
        with suppress(RuntimeError):  # it is open
            _release(self._lock)

    def passed(self, timeout: float | None = None) -> bool:
        """Sleep until it is open; False if ``timeout`` seconds were over before."""
        return _acquire(self._lock, True, -1 if timeout is None else timeout)


class Sleeper:
    """A thread that takes turns with another wakes on the core of the one that woke it. Linux only.

    A system wakes a thread on a core that idles. For two that take turns that is the wrong one: its caches hold nothing
    of the other's work, and an exchange that takes a few microseconds costs twice as much. Awake, a thread may run
    wherever it could before. It calls :meth:`rest` and :meth:`rise` itself, the other calls :meth:`beckon`.
    """

    __slots__ = ("_beckoned", "_cores", "_thread")

    def __init__(self) -> None:
        self._thread, self._beckoned = 0, False
        self._cores: set[int] = set()

    def rest(self) -> None:
        """It is about to sleep."""
        if _core() is not None:
            self._thread, cores = threading.get_native_id(), os.sched_getaffinity(0)
            if not self._beckoned:  # else the other was quicker, and these are the cores to which it was sent
                self._cores = cores

    def beckon(self) -> None:
        """Let it wake on the caller's core, if it may run there. The caller wakes it next, and then sleeps."""
        core = _core()
        if core is not None and len(self._cores) > 1 and (here := core()) in self._cores:
            self._beckoned = True
            try:
                os.sched_setaffinity(self._thread, (here,))
            except OSError:  # it is no more, or that is not allowed
                self._cores = set()

    def rise(self) -> None:
        """It is awake."""
        if self._beckoned:
            self._beckoned = False
            if self._cores:
                os.sched_setaffinity(0, self._cores)


@cache
def _core() -> Any:
    """The function that says which core the caller runs on; None where threads cannot be sent to one."""
    if not hasattr(os, "sched_setaffinity"):
        return None
    return getattr(ctypes.PyDLL(None), "sched_getcpu", None)


class Party:
    """The participants of one call, in order. ``caller`` is the participant that made the call, if one did."""

    members: Sequence[Turn]
    caller: Turn | None
    explain: Callable[[str], str | None] | None

    def is_within(self, other: Party) -> bool:
        """Whether it is ``other``, or a call that somebody within ``other`` made."""
        return self is other or self.caller is not None and self.caller.party.is_within(other)


class Turn:
    """The turn of one participant, as the others change it; they hold the ring meanwhile."""

    def __init__(self, party: Party, name: str, begin: Callable[[], object]) -> None:
        self.party, self.name = party, name
        self._begin = begin
        self.result: Any = None
        self.failure: BaseException | None = None
        self.state, self.waits = State.NEW, NOTHING
        # This is raised in its thread as soon as it has the baton, or asks for it.
        self.error: BaseException | None = None
        # Called in its thread whenever it has got the baton. Participants that it calls have the same.
        self.arrive: Callable[[], object] | None = None if party.caller is None else party.caller.arrive
        # Whether it is ended as soon as it hands the baton on.
        self.last = False
        # Whether it has been given the baton, and its thread has not come for it.
        self.called = False
        self.thread = 0
        self._gate, self._end = Gate(), Gate()
        self._sleeper = Sleeper()

    @property
    def over(self) -> bool:
        """Whether it takes no turn any more."""
        return self.state is State.OVER

    @property
    def awaits(self) -> str:
        """The thing that it waits for, for a message; "" if it does not wait."""
        return str(self.waits.what) if self.state is State.WAITS else ""

    def can_go(self) -> bool:
        """Whether it could use the baton now."""
        if self.state is State.WAITS:
            return self.waits.ready()
        return self.state in (State.NEW, State.READY)

    def go(self, near: bool = False) -> None:
        """Give it the baton. ``near``: this thread, which had it, is about to sleep."""
        new, self.state, self.called = self.state is State.NEW, State.RUNS, True
        if new:
            self._begin()
        else:
            if near:
                self._sleeper.beckon()
            self._gate.open()

    def finish(self) -> None:
        """It takes no turn any more."""
        self.state = State.OVER
        self._end.open()

    def end(self) -> None:
        """Raise :class:`Ended` in its thread, if it has one that is not this one."""
        ran = self.state is State.RUNS
        self.error = Ended()
        self.finish()
        self._gate.open()
        if ran and self.thread not in (0, threading.get_ident()):
            self.raise_there(Ended)

    def raise_there(self, kind: type[BaseException]) -> None:
        """Raise ``kind`` in its thread, where Python runs in it next."""
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self.thread), ctypes.py_object(kind))

    def join(self, timeout: float | None = None) -> bool:
        """Wait until it is over, in a thread that takes no part; False if ``timeout`` seconds were over before."""
        if not self._end.passed(timeout):
            return False
        self._end.open()
        return True
