"""Threads on the simulated machine: every new one sees it, replicas take turns, and it is seen when one waits.

PyTorch runs the replicas of a data-parallel call in threads that race. Here, threads started by a function called
``parallel_apply`` that joins them (PyTorch's, or a copy of it in somebody's code) take turns in a fixed order (see
:mod:`labkit.turns.baton`), so that what they print is the same every time; labkit's engine asks for turns itself.

A replica that waits must hand its turn on, or the one that it waits for would never run. In CPython all waiting
of ``threading``, ``queue`` and ``concurrent.futures`` comes down to three types of C: the lock, the RLock and the
SimpleQueue. While replicas take turns, and only then, methods of these types are watched (:func:`waits`), so it
does not matter when, or from where, a lock was made. Threads that are no replicas pass through. Where these types
cannot be watched, replicas race: turns without it could hang.

Not seen are methods that were taken from their lock before the call (a Condition's ``acquire``, not ``with
condition``), pipes, files and sockets, and what other C code waits for: there a replica keeps its turn, and if it
waits for another one that way it waits for ever. One that waits for a thread of its own lets the others go on.
"""

from __future__ import annotations

import _thread
import ctypes
import gc
import os
import queue
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import cache, partial
from types import FrameType
from typing import TYPE_CHECKING, Any

from ...base.language import say
from ...base.patches import Patch, Patches
from ...turns import baton as turns
from .in_use import machine_in_use

if TYPE_CHECKING:
    from ..machine import Machine

_M_ARENA_MAX = -8  # malloc.h
# Modules whose functions wait for their caller: what a user called stands above them.
_WAITING = {"threading", "queue", "concurrent.futures._base", __name__}


@cache
def share_one_arena() -> None:
    """Let glibc's malloc give new threads the memory that old ones warmed up.

    By default a thread's own arena starts cold, and every buffer of a replica costs page faults: a forward
    pass of 12 ms took 18 to 20 in a fresh thread, 14 with one arena. Replicas take turns, so they do not
    contend for it. Only the allocator is touched, not torch; a choice made in the environment is respected.
    """
    if not sys.platform.startswith("linux") or {"MALLOC_ARENA_MAX", "GLIBC_TUNABLES"} & os.environ.keys():
        return
    try:
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)
    except (OSError, AttributeError):
        return  # another C library: nothing to gain


def patches(machine: Machine) -> Iterator[Patch]:
    """New threads enter the machine; unless they are to race, replicas take turns."""
    yield from _entering()
    order: Any = machine.order
    if order != "threads" and waits():
        baton: Any = partial(turns.Baton, order=order, watch=watching)

        def run_in_turn(names: Any, functions: Any, context: Any = nullcontext) -> list[Any]:
            return baton(names).run(functions, context)

        yield Patch(turns, "run_together", run_in_turn)
        yield from _turns_of_threads(baton)


def _entering() -> Iterator[Patch]:
    bootstrap = threading.Thread._bootstrap_inner
    start_new = _thread.start_new_thread

    def entered(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        machine = machine_in_use()
        if machine is None:
            return function(*args, **kwargs)
        with machine.entered():
            return function(*args, **kwargs)

    def bootstrap_inner(self: threading.Thread) -> None:
        entered(bootstrap, self)

    def start_new_thread(function: Callable[..., Any], args: Any, kwargs: Any = None) -> int:
        return start_new(entered, (function, *args), kwargs or {})

    yield Patch(threading.Thread, "_bootstrap_inner", bootstrap_inner)
    yield Patch(_thread, "start_new_thread", start_new_thread)


class _Call(threading.local):
    """The ``parallel_apply`` in which this thread starts others, until it joins the first of them."""

    frame: FrameType | None = None
    baton: turns.Baton | None = None


def _turns_of_threads(new_baton: Callable[[], turns.Baton]) -> Iterator[Patch]:
    start, join = threading.Thread.start, threading.Thread.join
    call, here = _Call(), turns.here

    def start_in_turn(self: threading.Thread) -> None:
        caller = sys._getframe(1)
        if caller.f_code.co_name != "parallel_apply" or "join" not in caller.f_code.co_names:
            with turns.unseen():  # that a new thread is up is no wait for another replica
                start(self)
            return
        if call.baton is None or call.frame is not caller:
            call.frame, call.baton = caller, new_baton()
        # It begins when its turn comes, which is not before all are known: before the first is joined.
        at, device = len(call.baton.members), _argument(self, "device")
        name = f"replica {at}" + (
            f" on cuda:{device}" if isinstance(device, int) else f" on {device}" * bool(device)
        )
        self._labkit_turn = call.baton, call.baton.add(name, partial(begin, self))

    def begin(self: threading.Thread) -> None:
        baton, member = self._labkit_turn
        run = self.run

        def run_in_turn() -> None:
            # The thread holds this function: taken out again, or both would live until the collector comes.
            del self.run
            baton.act(member, run)

        self.run = run_in_turn  # type: ignore[method-assign]
        start(self)

    def join_in_turn(self: threading.Thread, timeout: float | None = None) -> None:
        baton, member = self.__dict__.get("_labkit_turn", (None, None))
        if baton is None:
            if here.member is None or not self.is_alive():
                return join(self, timeout)
            here.member.away(partial(join, self, timeout))
            return None
        if call.baton is baton:
            call.frame = call.baton = None
        baton.open()
        if baton.wait_for(member, timeout):
            if member.failure is not None:
                raise member.failure
            with turns.unseen():
                join(self)

    yield Patch(threading.Thread, "start", start_in_turn)
    yield Patch(threading.Thread, "join", join_in_turn)


def _argument(thread: threading.Thread, name: str) -> Any:
    """What a thread that has not begun will give its function as ``name``; None if it gives none."""
    code = getattr(getattr(thread, "_target", None), "__code__", None)
    return None if code is None else dict(zip(code.co_varnames, thread._args, strict=False)).get(name)


class CType:
    """A type of C as an owner of patches: its attributes cannot be set, the entries of its dictionary can.

    Nothing less will do. The locks are there before a call, and hold no dictionary; a Condition makes the lock in
    which it sleeps from a name of its own module (``Lock`` in Lib/threading.py); a subclass or another factory in
    ``threading`` would see new locks alone; ``SimpleQueue`` waits within C (Modules/_queuemodule.c), as the
    locks do (Modules/_threadmodule.c). And ``type.__setattr__`` refuses types that are marked immutable.

    ``PyType_Modified`` (Objects/typeobject.c) tells the interpreter, which caches what it looked up, that the
    dictionary has changed. From Python 3.12 on a type that was changed some 1000 times is no longer cached:
    its methods are then found a little more slowly. Tried on CPython 3.11, 3.12 and 3.13. Raises
    NotImplementedError where the dictionary is not to be had.
    """

    def __init__(self, kind: type) -> None:
        api: Any = getattr(ctypes, "pythonapi", None)
        entries = gc.get_referents(kind.__dict__)
        if [type(one) for one in entries] != [dict] or not hasattr(api, "PyType_Modified"):
            raise NotImplementedError(f"the dictionary of {kind} cannot be changed")
        # vars() first asks the instance's type, where __dict__ is the property below.
        object.__setattr__(self, "_kind", kind)
        object.__setattr__(self, "_entries", entries[0])
        object.__setattr__(self, "_modified", partial(api.PyType_Modified, ctypes.py_object(kind)))

    __slots__ = ("_entries", "_kind", "_modified")
    _kind: type
    _modified: Callable[[], object]
    _entries: dict[str, Any]

    @property
    def __dict__(self) -> dict[str, Any]:  # type: ignore[override]
        return self._entries

    @property
    def __name__(self) -> str:
        return f"{self._kind.__module__}.{self._kind.__qualname__}"

    def __setattr__(self, name: str, value: object) -> None:
        self._entries[name] = value
        self._modified()


@cache
def waits() -> tuple[Patch, ...]:
    """What is changed while replicas take turns: where a thread can wait, and where it can be given something.

    The waiting of replicas is noted; when something is given back they look again. Empty where it cannot be done.
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


_RLOCK = type(threading.RLock())
watching = Patches(waits)


def _is_free(lock: Any) -> bool:
    # An RLock has locked() from Python 3.14 on only.
    return repr(lock).startswith("<unlocked") if type(lock) is _RLOCK else not lock.locked()


# These run wherever anybody takes a lock while replicas take turns, at the end of the interpreter too, when modules
# have lost their names: what they need there is in their closures.


def _taking(real: Callable[..., bool], kind: str) -> Callable[..., bool]:
    here, unseen = turns.here, turns.unseen

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

    def sleep(member: turns.Member, outer: Any, own: Any, what: str, within: float | None) -> bool:
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
    here, empty = turns.here, queue.Empty

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
    here, stalled, something_came = turns.here, turns.stalled, turns.something_came

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
    """What the code that called the waiting functions waits for and where, and whether it is no servant's."""
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
    return text, str(frame.f_globals.get("__name__")).partition(".")[0] not in turns.SERVANTS
