"""The baton: several functions called in turn, one at a time, in a fixed order; without a machine they race."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any, cast

from .member import Member, here
from .ring import Ring
from .turn import Ended, Party, State, Wait

# Seconds that one who was interrupted has to come to a wait, where it meets the interrupt.
_PATIENCE = 0.5
_NO_WATCH = nullcontext()


class Baton(Party):
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
        # Whether an interrupt of the caller is raised in each participant first, and whether that has happened.
        self.passes_interrupts = self.interrupted = False
        self.caller: Member | None = here.member
        self._open = False
        self.ring = self.caller.ring if self.caller is not None else Ring()
        self.members: list[Member] = []
        for name in names:
            self.add(name)

    def add(self, name: str, begin: Callable[[], object] | None = None) -> Member:
        """One more participant; ``begin()``, called when its turn comes, starts a thread that calls :meth:`act`."""
        member = Member(self, self.ring, name, begin or (lambda: self._start(member)))
        self.members.append(member)
        return member

    def enter(self, name: str) -> Member:
        """From now on this thread takes part, until :meth:`.member.Member.leave`."""
        member = self.add(name)
        self.ring.watch(self._watch)
        self.ring.awaited = [member]
        self._enter()
        member.take()
        return member

    def run(
        self,
        functions: Sequence[Callable[[], Any]],
        context: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> list[Any]:
        """Call a function for each participant, and return their results.

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
                    first.state = State.NEW
                    first.go()

    def wait_for(self, member: Member, timeout: float | None = None) -> bool:
        """Wait until ``member`` is over; False if ``timeout`` seconds were over before. An interrupt ends all."""
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
                member.take()
                function()
            finally:
                self.ring.let_go()
                member.leave()

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
                self.caller.raise_error()
            self.ring.live.extendleft(reversed(ordered))
            for first in ordered[:1]:
                self.ring.holder = first
                first.state = State.RUNS
                return first
        return None

    def _start(self, member: Member) -> None:
        """Begin the turn of ``member`` in a thread of its own, where its function is called."""
        threading.Thread(target=self._apart, args=(member,), name=member.name, daemon=True).start()

    def _apart(self, member: Member) -> None:
        with suppress(Ended):
            self._work(member, None, self._context)

    def _work(
        self,
        first: Member,
        parent: Member | None,
        context: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        """Run ``first``, and then whoever is next and has not begun, in this thread."""
        if parent is not None:
            parent.state, parent.waits = State.WAITS, Wait(self._is_over)
        member: Member | None = first
        while member is not None:
            try:
                member.take()
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
                member = cast("Member | None", self.ring.hand_on(member, host=self))  # one of ours, or nobody
        if parent is not None:
            parent.sleep()

    def _is_over(self) -> bool:
        """Whether no participant takes turns any more."""
        return all(member.over for member in self.members)


# (names) -> the baton by which functions that are called together take turns; None: they race.
batons: list[Callable[[Sequence[str]], Baton | None]] = []


def run_together(
    names: Sequence[str],
    functions: Sequence[Callable[[], Any]],
    context: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> list[Any]:
    """The results of ``functions``, each called in a thread of its own, within ``context()``.

    They race, as on real GPUs, unless one of :data:`batons` gives one, as a simulated machine does. The first that
    raises is raised here, when all have ended.
    """
    for new_baton in batons:
        if (baton := new_baton(names)) is not None:
            return baton.run(functions, context)
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
