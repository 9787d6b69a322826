"""Taking turns: of several participants one runs at a time, in a fixed order, and it is known who waits for whom.

Replicas race on real GPUs. A simulated machine lets them run one after another, so that what they print is the
same every time. A participant has the **baton** until it ends or has to wait (for a lock, a queue, a barrier);
the next in the order that can go on gets it, and one that waited gets it back once what it waited for is there.
No clock decides: a participant is seen to wait because it says so (:meth:`Member.wait`), which is what a
simulated machine lets Python's locks and queues do (:mod:`labkit.machine.state.threads`).

When all of them wait and no other thread could help, each gets a :class:`Deadlock` that names who waits where. When
the caller is interrupted all of them are ended, so that nobody is left for whom a later call could wait.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from enum import Enum, auto
from math import inf
from time import monotonic  # for users' own timeouts alone
from types import FrameType
from typing import Any, NamedTuple

from ..base.cores import Sleeper
from ..base.language import say

# As C has them: the baton's own locks are not to be seen by a machine that watches locks.
_acquire, _release = type(threading.Lock()).acquire, type(threading.Lock()).release
_enter, _leave = type(threading.RLock()).acquire, type(threading.RLock()).release

# Packages whose threads serve a kernel, a debugger or a test runner, and never give replicas what they wait for.
SERVANTS = frozenset(
    "IPython ipykernel jupyter_client jupyter_core nbclient zmq tornado anyio decorator debugpy _pydevd_bundle "
    "tqdm execnet".split()
)

# Seconds after which those who wait look again by themselves: what a thread outside did may have passed unseen.
_BEAT = 0.1
# Seconds that one who was interrupted has to come to a wait, where it meets the interrupt.
_PATIENCE = 0.5


class Deadlock(RuntimeError):
    """Every participant waits, and nobody is left who could end that."""


class Ended(BaseException):
    """Ends a participant whose call was interrupted. ``except Exception`` lets it pass."""


class _State(Enum):
    NEW = auto()
    RUNS = auto()  # it has the baton
    WAITS = auto()  # it goes on once it is given the baton and what it waits for is there
    READY = auto()  # it goes on once it is given the baton
    OVER = auto()


class _Wait(NamedTuple):
    ready: Callable[[], bool]
    what: object = ""  # for a message, as str() says it; empty if nobody is to be told
    ends: bool = (
        False  # whether it may end without anybody's help: by time, or by a thread that takes no part
    )
    lock: int = 0
    inside: bool = False  # whether only somebody who takes turns, too, can end it
    patience: Callable[[], bool] | None = None  # False: whoever has the baton is ended


_NOTHING = _Wait(bool)


class Member:
    """One participant of a :class:`Baton`, to be had by its own thread from :func:`participant`."""

    def __init__(self, baton: Baton, name: str, begin: Callable[[], object]) -> None:
        self.baton, self.name = baton, name
        self._begin = begin
        self.result: Any = None
        self.failure: BaseException | None = None
        self._state, self._waits = _State.NEW, _NOTHING
        # What is raised in it as soon as it has the baton, or asks for it.
        self._error: BaseException | None = None
        # Called in its thread whenever it has got the baton; those whom it calls do as it does.
        self.arrive: Callable[[], object] | None = None if baton.caller is None else baton.caller.arrive
        self._thread = 0
        self._gate, self._end = _closed(), _closed()
        self._sleeper = Sleeper()

    @property
    def over(self) -> bool:
        """Whether it takes no turn any more."""
        return self._state is _State.OVER

    @property
    def awaits(self) -> str:
        """What it waits for, for a message; "" if it does not."""
        return str(self._waits.what) if self._state is _State.WAITS else ""

    @property
    def ring(self) -> Ring:
        """All with whom it shares the baton."""
        return self.baton.ring

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

        ready      asked by whoever hands the baton on: quick, and never an error.
        what       for a message of a deadlock, as str() says it: "Queue.get at train.py:12"; "" if not to be told.
        timeout    in seconds; those whose turn it is come first, then it ends.
        lock       the id of a lock that its holder must give back, if it is one.
        take       takes what is ready; False if somebody outside was quicker. Default: ``ready`` itself.
        inside     nobody but another participant can make it ready: no thread outside is waited for.
        patience   asked now and then while another has the baton; when it says False, that one is ended.
        """
        deadline = None if timeout is None else monotonic() + timeout
        try:
            while True:
                self._hand_on(_Wait(ready, what, timeout is not None, lock, inside, patience))
                self._sleep(deadline)
                if (take or ready)():
                    return True
                if deadline is not None and monotonic() >= deadline:
                    return False
        finally:
            self._waits = _NOTHING  # or what ``ready`` knows would live until the next wait

    def away(self, function: Callable[[], Any]) -> Any:
        """The result of ``function()``, which waits for a thread that takes no part; the others go on meanwhile."""
        self._hand_on(_Wait(lambda: False, ends=True))
        try:
            with unseen():
                return function()
        finally:
            if isinstance(sys.exc_info()[1], (Exception, type(None))):
                self._come_back()
            else:
                self._break_off()

    def _hand_on(self, wait: _Wait) -> None:
        with self.ring:
            self._raise_error()
            self._state, self._waits = _State.WAITS, wait
            self.ring.hand_on(self)

    def _come_back(self) -> None:
        with self.ring:
            if not self.over:
                self._state = _State.READY
                self.ring.resume()
        self._sleep()

    def _sleep(self, deadline: float | None = None) -> None:
        """Return with the baton. After ``deadline`` it does not matter any more whether what it waits for is there."""
        ends = inf if deadline is None else deadline
        self._sleeper.rest()
        try:
            while not _acquire(
                self._gate, True, _BEAT if ends == inf else min(_BEAT, max(0, ends - monotonic()))
            ):
                with self.ring:
                    if monotonic() >= ends:
                        ends = inf
                        if self._state is _State.WAITS:
                            self._state = _State.READY
                    patience = self._waits.patience
                    if patience is not None and self._state is _State.WAITS and not patience():
                        self.ring.end_holder()
                    self.ring.resume()
                    self.ring.judge()
        except BaseException:
            self._break_off()
            self._sleeper.rise()  # nobody wakes it any more
            raise
        self._sleeper.rise()
        self.come()
        self._raise_error()

    def come(self) -> None:
        """This thread has the baton again."""
        if self.arrive is not None and not self.over:
            # As unseen() does, without what a context costs at every change of hands.
            seen, here.member = here.member, None
            try:
                self.arrive()
            finally:
                here.member = seen

    def _break_off(self) -> None:
        """This thread was interrupted and has no baton: nobody takes turns any more."""
        here.member = None
        self.ring.abandon()

    def _raise_error(self) -> None:
        if self._error is not None:
            error, self._error = self._error, None
            if isinstance(error, Ended):
                here.member = None  # while it unwinds it may take locks like any other thread
            raise error

    def can_go(self) -> bool:
        """Whether it could use the baton now."""
        return (
            self._waits.ready() if self._state is _State.WAITS else self._state in (_State.NEW, _State.READY)
        )

    def go(self, near: bool = False) -> None:
        """It has the baton; ``near``: this thread, which had it, is about to sleep."""
        new, self._state = self._state is _State.NEW, _State.RUNS
        if new:
            with unseen():  # that a new thread has started is waited for too
                self._begin()
        else:
            if near:
                self._sleeper.beckon()
            _open(self._gate)

    def finish(self) -> None:
        """It takes no turn any more."""
        self._state = _State.OVER
        _open(self._end)

    def end(self) -> None:
        """Raise :class:`Ended` in its thread, if it has one that is not this one."""
        ran = self._state is _State.RUNS
        self._error = Ended()
        self.finish()
        _open(self._gate)
        if ran and self._thread not in (0, threading.get_ident()):
            _raise_in(self._thread, Ended)

    def join(self, timeout: float | None = None) -> bool:
        """Wait until it is over, in a thread that takes no part; returns False if ``timeout`` seconds were before."""
        if not _acquire(self._end, True, -1 if timeout is None else timeout):
            return False
        _release(self._end)
        return True


class Ring:
    """All who share one baton: the participants of a call, and of the calls that they make themselves.

    ``with ring:`` around whatever changes it. No machine sees its lock, and an interrupt cannot leave it behind.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        # In the order of their turns: whoever has the baton first, unless it has just called others.
        self.live: deque[Member] = deque()
        self.holder: Member | None = None
        # Who holds a lock, by the lock's id, as far as that was seen.
        self.held: dict[int, Member] = {}
        # The thread outside that made the call, and for whom it waits: not for those alone that are over, when it
        # may be about to do something else.
        self.caller = threading.get_ident()
        self.awaited: Sequence[Member] = ()
        self._choosing = False

    def __enter__(self) -> None:
        _enter(self._lock)

    def __exit__(self, *exc_info: object) -> None:
        over = not self.live
        _leave(self._lock)
        # Not before: who puts patches in or out may be on the way to this lock.
        if over:
            self.unwatch()

    def watch(self, watch: AbstractContextManager[object]) -> None:
        """Enter ``watch``, if nothing like it is, until nobody lives any more."""
        if self not in _watches:
            watch.__enter__()
            _watches[self] = watch

    def unwatch(self) -> None:
        """Leave what was entered, once."""
        watch = _watches.pop(self, None)
        if watch is not None:
            watch.__exit__(None, None, None)

    def hand_on(self, member: Member, host: Baton | None = None) -> Member | None:
        """Give the baton, which ``member`` had, to the next that can go on.

        One of ``host`` that has not begun is returned instead: this thread runs it next.
        """
        if self.holder is member:
            self.holder = None
            if not member.over and self.live[0] is member:
                self.live.rotate(-1)
        if member.over and member in self.live:
            self.live.remove(member)
        chosen = self.resume(host, near=True)
        if self.holder is None:
            self.judge()
        return chosen

    def resume(self, host: Baton | None = None, near: bool = False) -> Member | None:
        """If nobody has the baton, give it to the first that can go on, as :meth:`hand_on` does."""
        if self.holder is not None or self._choosing or not self.live:
            return None
        # Before looking: who gives back a lock from now on will look again.
        stalled.add(self)
        self._choosing = True
        try:
            chosen = next((one for one in self.live if one.can_go()), None)
        finally:
            self._choosing = False
        if chosen is None:
            return None
        stalled.discard(self)
        self.holder = chosen
        self.live.rotate(-self.live.index(chosen))
        if chosen.baton is host and chosen._state is _State.NEW:
            chosen._state = _State.RUNS
            return chosen
        try:
            chosen.go(near)
        except Exception as error:  # no thread can be started
            chosen.failure = error
            chosen.finish()
            return self.hand_on(chosen, host)
        return None

    def end(self, baton: Baton | None = None) -> None:
        """End all participants, or those of ``baton`` and whom they called; who has the baton hands it on itself."""
        for member in [one for one in self.live if baton is None or one.baton.is_within(baton)]:
            self.live.remove(member)
            member.end()
        if not self.live:
            stalled.discard(self)

    def interrupt(self) -> None:
        """Raise KeyboardInterrupt in all who have begun, in each when it has the baton; the others do not begin."""
        with self:
            for member in tuple(self.live):
                if member._state is _State.NEW:
                    self.live.remove(member)
                    member.finish()
                    continue
                # Who has the baton meets it at its next wait: elsewhere it would come in the middle of anything.
                member._error = KeyboardInterrupt()
                if member is not self.holder:
                    member._state = _State.READY
            self.resume()

    def insist(self) -> None:
        """Raise it in who has the baton and comes to no wait."""
        with self:
            holder = self.holder
            if holder is not None and isinstance(holder._error, KeyboardInterrupt):
                holder._error = None
                _raise_in(holder._thread, KeyboardInterrupt)

    def end_holder(self) -> None:
        """End whoever has the baton: others have waited too long."""
        holder = self.holder
        if holder is not None:
            self.holder = None
            self.live.remove(holder)
            holder.end()

    def abandon(self) -> None:
        """End all participants after an interrupt, which may have come anywhere."""
        _enter(self._lock)
        self.awaited = ()
        self.end()
        with suppress(RuntimeError):  # as often as this thread entered it
            while True:
                _leave(self._lock)
        self.unwatch()

    def judge(self) -> None:
        """If nobody can go on, and nobody outside could change that, tell those who wait."""
        if self.holder is not None or not self.live or all(one.over for one in self.awaited):
            return
        waiting = [one for one in self.live if one._state is _State.WAITS]
        if any(one._waits.ends for one in waiting):
            return
        waiting = [one for one in waiting if one._waits.what]
        holders = [self.held.get(one._waits.lock) for one in waiting]
        for_each_other = all(
            by in self.live and by is not one for one, by in zip(waiting, holders, strict=True)
        )
        inside = all(one._waits.inside for one in waiting)
        if waiting and (inside or for_each_other or not self._others()):
            explain = waiting[0].baton.explain
            text = self._deadlock() if explain is None else explain(self.waits())
            if text is None:
                return
            for member in waiting:
                member._error, member._state = Deadlock(text), _State.READY
            self.resume()

    def _others(self) -> bool:
        """Whether there is a thread that takes no part and could do something for those who do."""
        ours = {self.caller, threading.get_ident(), *(one._thread for one in self.live)}
        # asyncio's own helpers do what their loop asks for, and the loop's thread is looked at by itself; labkit's
        # carry what ranks send. They are told by their names; threading.enumerate() would take a lock that a
        # participant may hold.
        named = threading._active.copy()  # type: ignore[attr-defined]  # Python's own, in no stub
        ours |= {thread for thread, one in named.items() if one.name.startswith(("asyncio", "labkit "))}
        return any(
            not _serves(frame) for thread, frame in sys._current_frames().items() if thread not in ours
        )

    def waits(self) -> str:
        """Who waits for what, and who has ended: a line for each."""
        lines = []
        for one in (one for baton in dict.fromkeys(one.baton for one in self.live) for one in baton.members):
            if one.over:
                lines.append(say(en=f"{one.name} has ended", zh=f"{one.name} 已经结束"))
            elif one._waits.what and one._state is _State.WAITS:
                holder = self.held.get(one._waits.lock)
                held = say(en=f", held by {holder.name}", zh=f"（由 {holder.name} 占着）") if holder else ""
                lines.append(say(en=f"{one.name} waits for ", zh=f"{one.name} 在等 ") + one.awaits + held)
        return "\n".join(f"  {line}" for line in lines)

    def _deadlock(self) -> str:
        waits = self.waits()
        return say(
            en="each of these waits for another, and nobody is left who could go on (on real GPUs the call "
            f"would hang without a word):\n{waits}\n"
            "Take locks in the same order everywhere, send each message that somebody waits for, and make a barrier "
            "for as many as really come to it.",
            zh="死锁：它们都在互相等待，谁也走不下去了（在真实的 GPU 上，这次调用会一声不响地卡住）：\n"
            f"{waits}\n请在各处按同一顺序加锁；有人等的消息，就要有人发；屏障（Barrier）的人数要与真正会到的人数一致。",
        )


_NO_WATCH = nullcontext()


class Baton:
    """The participants of one call, of whom one at a time has the baton.

    names      of the participants, for messages.
    order      who goes first, second, …, by number; default: as they stand. Numbers too large are left out.
    watch      entered as long as several take turns: what makes them say that they wait. May be entered again inside.
    explain    the text of a deadlock, given who waits for what in lines; default: that each waits for another. None:
               somebody in another process may still help, and it is to be asked again soon.

    The baton goes to the next in the order that can go on, and after the last to the first again::

        def first():                      # first   a───╮   (waits)           ╭───d
            print("a")                    # second      ╰───b───╮             │
            member = participant()        # third               ╰───c─────────╯
            member.wait(lambda: box, "the box")
            print("d")
        def second(): print("b"); box.append(1)
        def third(): print("c")

        Baton(["first", "second", "third"]).run([first, second, third])     # prints a b c d

    A participant that calls others in turn waits until they are over; their turns come before the next one's.
    """

    def __init__(
        self,
        names: Sequence[str] = (),
        order: Sequence[int] | None = None,
        watch: AbstractContextManager[object] = _NO_WATCH,
        explain: Callable[[str], str | None] | None = None,
    ) -> None:
        self._order, self._watch = order, watch
        self.explain = explain
        # Whether an interrupt of the caller is first raised in each participant, and whether that has happened.
        self.passes_interrupts = self.interrupted = False
        self.caller = here.member
        self._open = False
        self.ring = self.caller.ring if self.caller is not None else Ring()
        self.members: list[Member] = []
        for name in names:
            self.add(name)

    def add(self, name: str, begin: Callable[[], object] | None = None) -> Member:
        """One more participant; ``begin()``, called when its turn comes, starts a thread that calls :meth:`act`."""
        member = Member(self, name, begin or (lambda: self._start(member)))
        self.members.append(member)
        return member

    def enter(self, name: str) -> Member:
        """From now on this thread takes part, until :meth:`leave`."""
        member = self.add(name)
        self.ring.watch(self._watch)
        self.ring.awaited = [member]
        self._enter()
        self._take(member)
        return member

    def leave(self, member: Member) -> None:
        """This thread takes no part any more."""
        here.member = None
        with self.ring:
            member.finish()
            self.ring.hand_on(member)

    def run(
        self,
        functions: Sequence[Callable[[], Any]],
        context: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> list[Any]:
        """Call a function for each participant; returns their results.

        They run in the caller's thread as long as none has to wait, the rest in threads, within ``context()`` there:
        a fresh thread has cold caches, and OpenMP makes it a new pool of its own. What a function raises ends the
        others and is raised here, and so is what interrupts the caller.
        """
        members = list(self.members)
        self._functions, self._context = dict(zip(members, functions, strict=True)), context
        try:
            if self.caller is None:
                self.ring.awaited = members
            first = self._enter()
            if first is not None:
                self._work(first, self.caller)
            for member in members:
                self.wait_for(member)
            failure = next((one.failure for one in members if one.failure is not None), None)
            if failure is not None:
                raise failure
            return [member.result for member in members]
        except BaseException:
            if self.caller is None:
                self.ring.abandon()
            raise
        finally:
            # Their tracebacks hold this frame, and members their baton: tensors would wait for the collector.
            for member in members:
                member.failure = member.result = None
            failure, members, self._functions = None, [], {}
            self.members.clear()

    def open(self) -> None:
        """Let the first begin, with all who have been added; a second time nothing happens."""
        if not self._open:
            first = self._enter()
            if first is not None:
                with self.ring:
                    first._state = _State.NEW
                    first.go()

    def wait_for(self, member: Member, timeout: float | None = None) -> bool:
        """Wait until ``member`` is over; returns False if ``timeout`` seconds were before. An interrupt ends all."""
        parent, ring = self.caller, self.ring
        if parent is not None and parent is here.member:
            return member.over or parent.wait(lambda: member.over, "", timeout)
        try:
            while True:
                try:
                    with ring:
                        ring.awaited = [member] if timeout is None else ()
                        ring.judge()
                    if not self.interrupted or timeout is not None:
                        return member.join(timeout)
                    while not member.join(_PATIENCE):
                        ring.insist()
                    return True
                except KeyboardInterrupt:
                    if not self.passes_interrupts or self.interrupted:
                        raise
                    self.interrupted = True
                    ring.interrupt()
        except BaseException:
            ring.abandon()
            raise
        finally:
            ring.awaited = ()
            if self._is_over():
                self.members.clear()

    def act(self, member: Member, function: Callable[[], Any]) -> None:
        """Call ``function`` as ``member``, in the thread that was begun for it."""
        with suppress(Ended):
            try:
                self._take(member)
                function()
            finally:
                here.member = None
                with self.ring:
                    member.finish()
                    self.ring.hand_on(member)

    def is_within(self, other: Baton) -> bool:
        """Whether it is ``other``, or the call of somebody within it."""
        return self is other or self.caller is not None and self.caller.baton.is_within(other)

    def _enter(self) -> Member | None:
        """Give the first the baton; returns it."""
        self._open = True
        ordered = self.members
        if self._order is not None:
            ordered = [self.members[at] for at in self._order if at < len(self.members)]
        if len(ordered) > 1:
            self.ring.watch(self._watch)
        with self.ring:
            if self.caller is not None:
                self.caller._raise_error()
            self.ring.live.extendleft(reversed(ordered))
            for first in ordered[:1]:
                self.ring.holder = first
                first._state = _State.RUNS
                return first
        return None

    def _start(self, member: Member) -> None:
        threading.Thread(target=self._apart, args=(member,), name=member.name, daemon=True).start()

    def _apart(self, member: Member) -> None:
        with suppress(Ended):
            self._work(member, None, self._context)

    def _take(self, member: Member) -> None:
        """From now on this thread is ``member``."""
        with self.ring:
            member._thread = threading.get_ident()
            member._raise_error()
        here.member = member
        member.come()

    def _work(
        self,
        first: Member,
        parent: Member | None,
        context: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        """Run ``first``, and then whoever is next and has not begun, in this thread."""
        if parent is not None:
            parent._state, parent._waits = _State.WAITS, _Wait(self._is_over)
        member: Member | None = first
        while member is not None:
            try:
                self._take(member)
                with context():
                    member.result = self._functions[member]()
            except Ended:
                pass
            except BaseException as error:
                member.failure = error
            here.member = parent if parent is not None and not parent.over else None
            with self.ring:
                member.finish()
                if member.failure is not None:
                    self.ring.end(self)
                member = self.ring.hand_on(member, host=self)
        if parent is not None:
            parent._sleep()

    def _is_over(self) -> bool:
        return all(member.over for member in self.members)


def participant() -> Member | None:
    """Who this thread is, if it takes turns."""
    return here.member


@contextmanager
def unseen() -> Iterator[None]:
    """Inside, this thread keeps the baton whatever it waits for."""
    member, here.member = here.member, None
    try:
        yield
    finally:
        here.member = member


def something_came() -> None:
    """Look again whether somebody who waits can go on: a thread outside may have given back what it waits for."""
    for ring in tuple(stalled):
        with ring:
            ring.resume()


def run_together(
    names: Sequence[str],
    functions: Sequence[Callable[[], Any]],
    context: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> list[Any]:
    """The results of ``functions``, each called in a thread of its own, within ``context()``.

    They race, as on real GPUs. A simulated machine answers this call with a :class:`Baton`. The first that raises
    is raised here, when all have ended.
    """
    results: list[Any] = [None] * len(functions)
    failures: dict[int, BaseException] = {}

    def call(at: int) -> None:
        try:
            with context():
                results[at] = functions[at]()
        except BaseException as error:
            failures[at] = error

    threads = [threading.Thread(target=call, args=(at,), name=name) for at, name in enumerate(names)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        try:
            raise failures[min(failures)]
        finally:
            failures.clear()  # their tracebacks hold this frame
    return results


def _raise_in(thread: int, kind: type[BaseException]) -> None:
    """Raise ``kind`` in another thread, where Python runs in it next."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(kind))


class _Here(threading.local):
    member: Member | None = None
    forks: Member | None = None  # who it is, while it forks


here = _Here()
# Rings whose baton nobody has.
stalled: set[Ring] = set()
# What is entered for those with several participants.
_watches: dict[Ring, AbstractContextManager[object]] = {}


def _closed() -> threading.Lock:
    lock = threading.Lock()
    _acquire(lock)
    return lock


def _open(lock: threading.Lock) -> None:
    with suppress(RuntimeError):  # it is open
        _release(lock)


def _serves(frame: FrameType | None) -> bool:
    """Whether a thread runs nothing but a servant's code and Python's own."""
    rooms = set()
    while frame is not None:
        rooms.add(str(frame.f_globals.get("__name__")).partition(".")[0])
        frame = frame.f_back
    return bool(rooms & SERVANTS) and rooms <= SERVANTS | sys.stdlib_module_names | {"labkit"}


def _hold() -> None:
    """Keep the baton while this thread forks: before it does, IPython joins a thread, and nobody else may fork then."""
    here.forks, here.member = here.member, None


def _go_on() -> None:
    here.member, here.forks = here.forks, None


def _forget() -> None:
    """In a forked child there is only this thread, and it takes no turns."""
    member, here.member, here.forks = here.forks, None, None
    stalled.clear()
    for ring in {*_watches} | ({member.ring} if member is not None else set()):
        ring._lock, ring.holder = threading.RLock(), None
        while ring.live:
            ring.live.pop().finish()
        ring.unwatch()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_hold, after_in_parent=_go_on, after_in_child=_forget)
