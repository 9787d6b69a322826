"""Threads on the simulated machine: every new one sees it, replicas take turns, and it is seen when one waits.

PyTorch runs the replicas of a data-parallel call in threads that race. Here, threads started by a function called
``parallel_apply`` that joins them (PyTorch's, or a copy of it in somebody's code) take turns in a fixed order (see
:mod:`labkit.base.turns`), so that what they print is the same every time; labkit's engine asks for turns itself.

A replica that waits must hand its turn on, or the one that it waits for would never run. In CPython all waiting
of ``threading``, ``queue`` and ``concurrent.futures`` comes down to three types of C: the lock, the RLock and the
SimpleQueue. While the machine is in use their methods are watched, so it does not matter when, or from where, a
lock was made. Threads that are no replicas pass through.

Not seen are methods that were taken from their lock before the machine (a Condition's ``acquire``, not ``with
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
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from types import FrameType
from typing import TYPE_CHECKING, Any

from ...base import turns
from ...base.language import say
from ...base.patches import Patch
from ..in_use import machine_in_use

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
    """New threads enter the machine; unless they are to race, replicas take turns and are seen when they wait."""
    yield from _entering()
    if machine.order != "threads":
        order: Any = machine.order
        yield Patch(turns, "run_together", partial(turns.run_in_turn, order=order))
        yield from _turns_of_threads(order)
        yield from _waits()


def _entering() -> Iterator[Patch]:
    bootstrap = threading.Thread._bootstrap_inner
    start_new = _thread.start_new_thread

    def entered(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        machine = machine_in_use()
        if machine is None:
            return function(*args, **kwargs)
        with turns.living(), machine.entered():
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


def _turns_of_threads(order: Sequence[int] | None) -> Iterator[Patch]:
    start, join = threading.Thread.start, threading.Thread.join
    call, here = _Call(), turns.here

    def start_in_turn(self: threading.Thread) -> None:
        caller = sys._getframe(1)
        if caller.f_code.co_name != "parallel_apply" or "join" not in caller.f_code.co_names:
            with turns.unseen():  # that a new thread is up is no wait for another replica
                start(self)
            return
        if call.baton is None or call.frame is not caller:
            call.frame, call.baton = caller, turns.Baton(order=order)
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

    ``type.__setattr__`` refuses types that are marked immutable; ``PyType_Modified`` (CPython's C API) tells the
    interpreter, which caches what it looked up, that the dictionary has changed.
    """

    def __init__(self, kind: type) -> None:
        # vars() first asks the instance's type, where __dict__ is the property below.
        object.__setattr__(self, "_kind", kind)
        object.__setattr__(self, "_entries", gc.get_referents(kind.__dict__)[0])

    __slots__ = ("_entries", "_kind")
    _kind: type
    _entries: dict[str, Any]

    @property
    def __dict__(self) -> dict[str, Any]:  # type: ignore[override]
        return self._entries

    @property
    def __name__(self) -> str:
        return f"{self._kind.__module__}.{self._kind.__qualname__}"

    def __setattr__(self, name: str, value: object) -> None:
        self._entries[name] = value
        ctypes.pythonapi.PyType_Modified(ctypes.py_object(self._kind))


def _waits() -> Iterator[Patch]:
    """Where a thread can wait, the waiting of replicas is noted; where it can be given something, they look again."""
    lock, rlock, simple = (
        CType(type(threading.Lock())),
        CType(type(threading.RLock())),
        CType(queue.SimpleQueue),
    )
    is_open: Callable[[Any], bool] = lambda lock: not lock.locked()  # noqa: E731
    # An RLock has locked() from Python 3.14 on only.
    is_unlocked: Callable[[Any], bool] = lambda lock: repr(lock).startswith("<unlocked")  # noqa: E731
    for owner, kind, is_free in ((lock, "Lock", is_open), (rlock, "RLock", is_unlocked)):
        taking = _taking(vars(owner)["acquire"], kind, is_free)
        for name in ("acquire", "acquire_lock", "__enter__"):
            if name in vars(owner):
                yield Patch(owner, name, taking)
        for name in ("release", "release_lock", "__exit__", "_release_save"):
            if name in vars(owner):
                yield Patch(owner, name, _giving(vars(owner)[name], is_free))
    yield Patch(rlock, "_acquire_restore", _taking_again(vars(rlock)["_acquire_restore"], is_unlocked))
    yield Patch(simple, "get", _getting(vars(simple)["get"]))
    for name in ("put", "put_nowait"):
        yield Patch(simple, name, _giving(vars(simple)[name], lambda queue: False))


# These run wherever anybody takes a lock, at the end of the interpreter too, when modules have lost their names:
# what they need is in their closures.


def _taking(real: Callable[..., bool], kind: str, is_free: Callable[[Any], bool]) -> Callable[..., bool]:
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
            # The lock in which a Condition's wait sleeps is always its own: nobody holds it.
            key = 0 if frame.f_code is threading.Condition.wait.__code__ else id(self)
            within = None if timeout == -1 else timeout
            if not member.wait(lambda: is_free(self), what, within, key, lambda: real(self, False)):
                return False
        member.ring.held[id(self)] = member
        return True

    return acquire


def _taking_again(real: Callable[..., None], is_free: Callable[[Any], bool]) -> Callable[..., None]:
    here = turns.here

    def acquire_restore(self: Any, state: Any) -> None:
        member = here.member
        if member is not None and not is_free(self):
            what, own = _asked(sys._getframe(1), "RLock")
            if own:
                member.wait(lambda: is_free(self), what, None, id(self))
        real(self, state)

    return acquire_restore


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


def _giving(real: Callable[..., Any], is_free: Callable[[Any], bool]) -> Callable[..., Any]:
    here, stalled, something_came = turns.here, turns.stalled, turns.something_came

    def give(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = real(self, *args, **kwargs)
        member = here.member
        if member is not None and is_free(self):
            member.ring.held.pop(id(self), None)
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
