"""The ring of those who share one baton: who has it, who gets it next, and when nobody can go on."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress

from ..base.language import say
from .deadlock import Deadlock, could_help, deadlock_text
from .turn import Party, State, Turn

# As C has them: a machine that watches locks is not to see the ring's own.
_enter, _leave = type(threading.RLock()).acquire, type(threading.RLock()).release

# Rings whose baton nobody has.
stalled: set[Ring] = set()
# For each ring with several participants, the context that was entered for it.
watched: dict[Ring, AbstractContextManager[object]] = {}


class Ring:
    """All who share one baton: the participants of a call, and of the calls that they make themselves.

    Every change is made within ``with ring:``. No machine sees its lock, and an interrupt cannot leave it behind.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        # In the order of their turns. The one that has the baton is first, unless it has just called others.
        self.live: deque[Turn] = deque()
        self.holder: Turn | None = None
        # How often it was given to somebody.
        self.given = 0
        # The holder of each lock that was seen to be taken, by the lock's id.
        self.held: dict[int, Turn] = {}
        # The thread outside that made the call, and for whom it waits. Once these are over it may be about to do
        # something else, for the others.
        self.caller = threading.get_ident()
        self.awaited: Sequence[Turn] = ()
        self._choosing = False

    def __enter__(self) -> None:
        _enter(self._lock)

    def __exit__(self, *exc_info: object) -> None:
        over = not self.live
        _leave(self._lock)
        # Not before: a thread that puts patches in or out may be on the way to this lock.
        if over:
            self.unwatch()

    def watch(self, watch: AbstractContextManager[object]) -> None:
        """Enter ``watch``, if nothing like it is, until nobody lives any more."""
        if self not in watched:
            watch.__enter__()
            watched[self] = watch

    def unwatch(self) -> None:
        """Leave the context that :meth:`watch` entered, once."""
        watch = watched.pop(self, None)
        if watch is not None:
            watch.__exit__(None, None, None)

    def hand_on(self, member: Turn, host: Party | None = None) -> Turn | None:
        """Give the baton, which ``member`` had, to the next that can go on.

        One of ``host`` that has not begun is returned instead: this thread runs it next.
        """
        if self.holder is member:
            self.holder = None
            if not member.over and self.live[0] is member:
                self.live.rotate(-1)
        if member.over and member in self.live:
            self.live.remove(member)
        chosen = self.resume(host)
        if self.holder is None:
            self.judge()
        return chosen

    def resume(self, host: Party | None = None) -> Turn | None:
        """If nobody has the baton, give it to the first that can go on, as :meth:`hand_on` does."""
        if self.holder is not None or self._choosing or not self.live:
            return None
        # Before looking: a thread that gives a lock back from now on will look again.
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
        self.given += 1
        self.live.rotate(-self.live.index(chosen))
        if chosen.party is host and chosen.state is State.NEW:
            chosen.state = State.RUNS
            return chosen
        try:
            chosen.go()
        except Exception as error:  # no thread can be started
            chosen.failure = error
            chosen.finish()
            return self.hand_on(chosen, host)
        return None

    def end(self, party: Party | None = None) -> None:
        """End all participants, or those of ``party`` and of its members' calls. The one with the baton hands it on."""
        for member in [one for one in self.live if party is None or one.party.is_within(party)]:
            self.live.remove(member)
            member.end()
        if not self.live:
            stalled.discard(self)

    def interrupt(self) -> None:
        """Raise KeyboardInterrupt in each that has begun, when it has the baton; the others do not begin."""
        with self:
            for member in tuple(self.live):
                if member.state is State.NEW:
                    self.live.remove(member)
                    member.finish()
                    continue
                # The one with the baton meets it at its next wait: elsewhere it would come in the middle of anything.
                member.error = KeyboardInterrupt()
                if member is not self.holder:
                    member.state = State.READY
            self.resume()

    def insist(self) -> None:
        """Raise KeyboardInterrupt at once in the one that has the baton and has come to no wait since."""
        with self:
            holder = self.holder
            if holder is not None and not holder.called and isinstance(holder.error, KeyboardInterrupt):
                holder.error = None
                holder.raise_there(KeyboardInterrupt)

    def end_holder(self) -> None:
        """End the one that has the baton: others have waited too long."""
        holder = self.holder
        if holder is not None and not holder.called:  # one that is just being woken may be of these others
            self.holder = None
            self.live.remove(holder)
            holder.end()

    def abandon(self) -> None:
        """End all participants after an interrupt, which may have come anywhere."""
        _enter(self._lock)
        self.awaited = ()
        self.end()
        self.let_go()
        self.unwatch()

    def let_go(self) -> None:
        """Leave it as often as this thread has entered it: what ends a thread may have come between the two."""
        with suppress(RuntimeError):
            while True:
                _leave(self._lock)

    def dissolve(self) -> None:
        """In a forked child: the threads of the participants are not there, and its lock may be held by one of them."""
        self._lock, self.holder = threading.RLock(), None
        while self.live:
            self.live.pop().finish()
        self.unwatch()

    def judge(self) -> None:
        """If nobody can go on, and nobody outside could change that, tell those who wait."""
        if self.holder is not None or not self.live or all(one.over for one in self.awaited):
            return
        waiting = [one for one in self.live if one.state is State.WAITS]
        if any(one.waits.ends for one in waiting):
            return
        waiting = [one for one in waiting if one.waits.what]
        if not waiting or not self._is_dead(waiting):
            return
        explain = waiting[0].party.explain or deadlock_text
        text = explain(self._told())
        if text is None:
            self.resume()  # it may have let some go on
            return
        for member in waiting:
            member.error, member.state = Deadlock(text), State.READY
        self.resume()

    def _is_dead(self, waiting: list[Turn]) -> bool:
        """Whether those who wait can be helped by nobody: each of them by another of them, or by no thread outside."""
        holders = [self.held.get(one.waits.lock) for one in waiting]
        for_each_other = all(
            by in self.live and by is not one for one, by in zip(waiting, holders, strict=True)
        )
        if for_each_other or all(one.waits.inside for one in waiting):
            return True
        return not could_help({self.caller, threading.get_ident(), *(one.thread for one in self.live)})

    def _told(self) -> str:
        """Who waits for what, and who has ended: a line for each."""
        lines = []
        for one in (one for party in dict.fromkeys(one.party for one in self.live) for one in party.members):
            if one.over:
                lines.append(say(en=f"{one.name} has ended", zh=f"{one.name} 已经结束"))
            elif one.waits.what and one.state is State.WAITS:
                holder = self.held.get(one.waits.lock)
                held = say(en=f", held by {holder.name}", zh=f"（由 {holder.name} 占着）") if holder else ""
                lines.append(say(en=f"{one.name} waits for ", zh=f"{one.name} 在等 ") + one.awaits + held)
        return "\n".join(f"  {line}" for line in lines)


def something_came() -> None:
    """Look again whether somebody who waits can go on: a thread outside may have given back what it waits for."""
    for ring in tuple(stalled):
        with ring:
            ring.resume()
