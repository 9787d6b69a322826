"""Taking turns: of several participants one runs at a time, in a fixed order, and it is known who waits for whom.

Replicas race on real GPUs. A simulated machine lets them run one after another, so that what they print is the
same every time. A participant has the **baton** until it ends or has to wait (for a lock, a queue, a barrier);
the next in the order that can go on gets it, and one that waited gets it back once what it waited for is there.
No clock decides: a participant is seen to wait because it says so (:meth:`.member.Member.wait`), which is what a
simulated machine lets Python's locks and queues do (:mod:`.locks`).

When all of them wait and no other thread could help, each gets a :class:`Deadlock` that names who waits where. When
the caller is interrupted all of them are ended, so that nobody is left for whom a later call could wait.
"""

from .baton import Baton, batons, run_together
from .deadlock import Deadlock, could_help
from .member import Member, here, participant, unseen
from .ring import Ring, something_came, stalled
from .turn import Ended

__all__ = [
    "Baton",
    "Deadlock",
    "Ended",
    "Member",
    "Ring",
    "batons",
    "could_help",
    "here",
    "participant",
    "run_together",
    "something_came",
    "stalled",
    "unseen",
]
