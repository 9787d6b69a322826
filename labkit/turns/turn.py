"""A participant's turn: whether it runs or waits, what it waits for, and the gate at which its thread sleeps."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import Enum, auto
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

    def go(self) -> None:
        """Give it the baton."""
        new, self.state, self.called = self.state is State.NEW, State.RUNS, True
        if new:
            self._begin()
        else:
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
