"""Patches of Python's locks and queues that make a waiting task yield.

A replica that waits must yield, or the replica it waits for would never run. In CPython all waiting in ``threading``,
``queue`` and ``concurrent.futures`` comes down to three C types: the lock, the RLock and the SimpleQueue. While
replicas take turns, and only then, methods of these types are patched (:func:`lock_patches`), so it does not matter
when or where a lock was made. Threads that are no tasks pass through.

Only a change of the types will do. A lock made before the call cannot get methods of its own: it has no ``__dict__``. A
subclass, or another factory in ``threading``, would reach new locks alone, and not the lock in which a Condition sleeps
(``_allocate_lock`` in Lib/threading.py). ``SimpleQueue`` waits within C (Modules/_queuemodule.c), as locks do
(Modules/_threadmodule.c).

Not seen: methods bound before the call (a Condition keeps its lock's ``acquire``; ``with condition`` looks it up),
pipes, files, sockets, and waits in other C code. There a replica keeps its turn; if it waits for another replica, it
waits for ever. A replica that joins a thread it started yields.
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
from . import scheduler as schedulers
from .deadlock import SERVANTS

# Modules whose functions wait for their caller: skip their frames to find the user's line.
_WAITING = {"threading", "queue", "concurrent.futures._base"}
_RLOCK = type(threading.RLock())


@cache
def lock_patches() -> tuple[Patch, ...]:
    """Return the patches of methods in which a thread can wait or end a wait.

    Empty where these types cannot be changed.
    """
    try:
        lock, rlock = CType(type(threading.Lock())), CType(_RLOCK)
        simple = CType(queue.SimpleQueue)
    except NotImplementedError:
        return ()
    rows = [
        Patch(simple, "get", _wrap_get(vars(simple)["get"])),
        Patch(simple, "put", _wrap_release(vars(simple)["put"])),
        Patch(simple, "put_nowait", _wrap_release(vars(simple)["put_nowait"])),
    ]
    for owner, kind in ((lock, "Lock"), (rlock, "RLock")):
        taking = _wrap_acquire(vars(owner)["acquire"], kind)
        rows += [
            Patch(owner, name, taking)
            for name in ("acquire", "acquire_lock", "__enter__")
            if name in vars(owner)
        ]
        for name in ("release", "release_lock", "__exit__"):
            if name in vars(owner):
                rows.append(Patch(owner, name, _wrap_release(vars(owner)[name])))
    return tuple(rows)


# Entered while several tasks take turns.
lock_watch = Patches(lock_patches)


def _is_free(lock: Any) -> bool:
    """Whether ``lock`` is free."""
    # An RLock has locked() only since Python 3.14.
    return repr(lock).startswith("<unlocked") if type(lock) is _RLOCK else not lock.locked()


# These run even at the interpreter's end, when modules have lost their names: so closures hold the names needed.


def _wrap_acquire(real: Callable[..., bool], kind: str) -> Callable[..., bool]:
    """Return an ``acquire`` in which a task yields until the lock is free; other threads call ``real``."""
    here, keep_turn = schedulers.here, schedulers.keep_turn

    def acquire(self: Any, blocking: bool = True, timeout: float = -1) -> bool:
        task = here.task
        if task is None:
            return real(self, blocking, timeout)
        if not real(self, False):
            frame = sys._getframe(1)
            what, is_ours = _describe_wait(frame, kind)
            if not blocking or timeout != -1 and timeout <= 0 or not is_ours:
                with keep_turn():
                    return real(self, blocking, timeout)
            within = None if timeout == -1 else timeout
            if frame.f_code is threading.Condition.wait.__code__:
                if not sleep(task, frame.f_locals["self"]._lock, self, what, within):
                    return False
            elif not task.wait(
                lambda: _is_free(self), what, within, lock=id(self), take=lambda: real(self, False)
            ):
                return False
        task.scheduler.lock_holders[id(self)] = task
        return True

    def sleep(
        task: schedulers.ScheduledTask, outer: Any, waiter: Any, what: str, within: float | None
    ) -> bool:
        # The lock in which a Condition sleeps has no holder. A Condition on an RLock releases it before, and takes it
        # again afterwards, by C methods that no patch sees: forget its holder here, and return only when it is free.
        task.scheduler.lock_holders.pop(id(outer), None)
        try:
            return task.wait(lambda: _is_free(waiter), what, within, take=lambda: real(waiter, False))
        finally:
            if type(outer) is _RLOCK and here.task is task:
                if not _is_free(outer):
                    task.wait(lambda: _is_free(outer), what, None, id(outer))
                task.scheduler.lock_holders[id(outer)] = task

    return acquire


def _wrap_get(real: Callable[..., Any]) -> Callable[..., Any]:
    """Return a ``get`` in which a task yields until the queue has something."""
    here, empty = schedulers.here, queue.Empty

    def get(self: Any, block: bool = True, timeout: float | None = None) -> Any:
        task = here.task
        if task is None or not block or timeout is not None and timeout <= 0:
            return real(self, block, timeout)
        found: list[Any] = []

        def take() -> bool:
            try:
                found.append(real(self, False))
            except empty:
                return False
            return True

        if not take():
            what, is_ours = _describe_wait(sys._getframe(1), "SimpleQueue.get")
            if not is_ours:
                return real(self, block, timeout)
            if not task.wait(lambda: not self.empty(), what, timeout, take=take):
                raise empty
        return found.pop()

    return get


def _wrap_release(real: Callable[..., Any]) -> Callable[..., Any]:
    """Return a ``release`` or ``put`` that wakes waiting tasks."""
    here, stalled, wake_stalled = schedulers.here, schedulers.stalled, schedulers.wake_stalled

    def give(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = real(self, *args, **kwargs)
        task = here.task
        if task is not None and id(self) in task.scheduler.lock_holders and _is_free(self):
            del task.scheduler.lock_holders[id(self)]
        if stalled:
            wake_stalled()
        return result

    return give


def _describe_wait(frame: FrameType | None, what: str) -> tuple[str, bool]:
    """Return what the caller of waiting functions waits for, and where; and whether it is outside SERVANTS' code."""
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
