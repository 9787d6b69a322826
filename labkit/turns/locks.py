"""Locks and queues of Python, changed so that a participant that waits for one hands the baton on.

A replica that waits must hand its turn on, or the one that it waits for would never run. In CPython all waiting
of ``threading``, ``queue`` and ``concurrent.futures`` comes down to three types of C: the lock, the RLock and the
SimpleQueue. While replicas take turns, and only then, methods of these types are watched (:func:`waits`), so it
does not matter when, or from where, a lock was made. Threads that are no replicas pass through.

Nothing less than a change of these types will do. The locks are there before a call, and hold no dictionary; a
Condition makes the lock in which it sleeps from a name of its own module (``Lock`` in Lib/threading.py); a subclass
or another factory in ``threading`` would see new locks alone; ``SimpleQueue`` waits within C
(Modules/_queuemodule.c), as the locks do (Modules/_threadmodule.c).

Not seen are methods that were taken from their lock before the call (a Condition's ``acquire``, not ``with
condition``), pipes, files and sockets, and what other C code waits for: there a replica keeps its turn, and if it
waits for another one that way it waits for ever. One that waits for a thread of its own lets the others go on.
"""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Callable
from functools import cache
from types import FrameType
from typing import Any

from ..base.language import say
from ..base.patches import CType, Patch, Patches
from . import member as members
from . import ring as rings
from .deadlock import SERVANTS

# Modules whose functions wait for their caller: the function that a user called stands above them.
_WAITING = {"threading", "queue", "concurrent.futures._base"}
_RLOCK = type(threading.RLock())


@cache
def waits() -> tuple[Patch, ...]:
    """The patches while replicas take turns: the methods in which a thread can wait, and those that end a wait.

    A replica that would wait hands the baton on; when a lock is given back, those who wait look again. There are none
    where these types cannot be changed.
    """
    try:
        lock, rlock = CType(type(threading.Lock())), CType(_RLOCK)
        simple = CType(queue.SimpleQueue)
    except NotImplementedError:
        return ()
    rows = [
        Patch(simple, "get", _getting(vars(simple)["get"])),
        Patch(simple, "put", _giving(vars(simple)["put"])),
        Patch(simple, "put_nowait", _giving(vars(simple)["put_nowait"])),
    ]
    for owner, kind in ((lock, "Lock"), (rlock, "RLock")):
        taking = _taking(vars(owner)["acquire"], kind)
        rows += [
            Patch(owner, name, taking)
            for name in ("acquire", "acquire_lock", "__enter__")
            if name in vars(owner)
        ]
        for name in ("release", "release_lock", "__exit__"):
            if name in vars(owner):
                rows.append(Patch(owner, name, _giving(vars(owner)[name])))
    return tuple(rows)


# In as long as several participants take turns.
watching = Patches(waits)


def _is_free(lock: Any) -> bool:
    """Whether nobody holds ``lock``."""
    # An RLock has locked() from Python 3.14 on only.
    return repr(lock).startswith("<unlocked") if type(lock) is _RLOCK else not lock.locked()


# These run wherever a lock is taken while replicas take turns. At the end of the interpreter modules have lost their
# names, so the names that are needed even then are in closures.


def _taking(real: Callable[..., bool], kind: str) -> Callable[..., bool]:
    """An ``acquire`` by which a participant hands the baton on until the lock is free; others do as ``real`` does."""
    here, unseen = members.here, members.unseen

    def acquire(self: Any, blocking: bool = True, timeout: float = -1) -> bool:
        member = here.member
        if member is None:
            return real(self, blocking, timeout)
        if not real(self, False):
            frame = sys._getframe(1)
            what, own = _asked(frame, kind)
            if not blocking or timeout != -1 and timeout <= 0 or not own:
                with unseen():
                    return real(self, blocking, timeout)
            within = None if timeout == -1 else timeout
            if frame.f_code is threading.Condition.wait.__code__:
                if not sleep(member, frame.f_locals["self"]._lock, self, what, within):
                    return False
            elif not member.wait(lambda: _is_free(self), what, within, id(self), lambda: real(self, False)):
                return False
        member.ring.held[id(self)] = member
        return True

    def sleep(member: members.Member, outer: Any, own: Any, what: str, within: float | None) -> bool:
        # Nobody holds the lock in which a Condition sleeps. Its outer lock it gives back before and takes again
        # afterwards, by methods of C that it has had since it was made: by then the lock must be free.
        member.ring.held.pop(id(outer), None)
        try:
            return member.wait(lambda: _is_free(own), what, within, take=lambda: real(own, False))
        finally:
            if type(outer) is _RLOCK and here.member is member:
                if not _is_free(outer):
                    member.wait(lambda: _is_free(outer), what, None, id(outer))
                member.ring.held[id(outer)] = member

    return acquire


def _getting(real: Callable[..., Any]) -> Callable[..., Any]:
    """A ``get`` by which a participant hands the baton on until the queue has something."""
    here, empty = members.here, queue.Empty

    def get(self: Any, block: bool = True, timeout: float | None = None) -> Any:
        member = here.member
        if member is None or not block or timeout is not None and timeout <= 0:
            return real(self, block, timeout)
        found: list[Any] = []

        def take() -> bool:
            try:
                found.append(real(self, False))
            except empty:
                return False
            return True

        if not take():
            what, own = _asked(sys._getframe(1), "SimpleQueue.get")
            if not own:
                return real(self, block, timeout)
            if not member.wait(lambda: not self.empty(), what, timeout, take=take):
                raise empty
        return found.pop()

    return get


def _giving(real: Callable[..., Any]) -> Callable[..., Any]:
    """A ``release`` or ``put`` after which those who wait look again."""
    here, stalled, something_came = members.here, rings.stalled, rings.something_came

    def give(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = real(self, *args, **kwargs)
        member = here.member
        if member is not None and id(self) in member.ring.held and _is_free(self):
            del member.ring.held[id(self)]
        if stalled:
            something_came()
        return result

    return give


def _asked(frame: FrameType | None, what: str) -> tuple[str, bool]:
    """A text of what the caller of the waiting functions waits for, and where; and whether it is no servant's code."""
    while frame is not None and frame.f_globals.get("__name__") in _WAITING:
        owner, name = frame.f_locals.get("self"), frame.f_code.co_name
        what = type(owner).__name__ + f".{name}" * (name != "__enter__")
        if isinstance(owner, threading.Barrier):
            what += f" ({owner.parties})"
        frame = frame.f_back
    if frame is None:
        return what, True
    place = f"{frame.f_code.co_filename}:{frame.f_lineno}"
    text = say(
        en=f"{what} at {place} in {frame.f_code.co_qualname}",
        zh=f"{what}（{place}，{frame.f_code.co_qualname}）",
    )
    return text, str(frame.f_globals.get("__name__")).partition(".")[0] not in SERVANTS
