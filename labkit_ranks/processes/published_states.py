"""The state that each rank publishes for the others, and conclusions from all states.

Pure functions. :mod:`.deadlock_detector` publishes and reads the states.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from ..calls import faults
from ..calls.call import CollectiveCall

# Kinds of calls that are no collectives: waiting for a key ("store.get", …), creating a group.
STORE, NEW = "store", "new_group"
# Keys of collectives, which all members of a group make.
_BY_ALL = ("all", NEW)


@dataclass
class PublishedState:
    """The published state of one rank.

    number  how often the rank has published; 0 before its start.
    looks   how often it has looked into a store for the awaited key.
    state   "runs", "waits" or "ended".
    waits   the calls that the rank waits in; ``open`` those still pending at its end.
    held    pending messages behind an earlier one, each with that message: NCCL runs a pair's messages in order.
    issued  the number of calls for each key; ``last`` the last call.
    came    how often the rank has come to each (line of code, kind of call).
    error   the name and text of the error that ended the rank.
    passes  how often a wrapped model's forward has run in training.
    """

    number: int = 0
    looks: int = 0
    state: str = "runs"
    waits: list[CollectiveCall] = field(default_factory=list)
    open: list[CollectiveCall] = field(default_factory=list)
    held: list[tuple[CollectiveCall, CollectiveCall]] = field(default_factory=list)
    issued: dict[Any, int] = field(default_factory=dict)
    came: dict[tuple[str, str], int] = field(default_factory=dict)
    last: CollectiveCall | None = None
    error: tuple[str, str] | None = None
    passes: int = 0

    def count_calls(self, *key: Any) -> int:
        return self.issued.get(key, 0)

    @property
    def waits_in_a_store(self) -> bool:
        return any(call_key(call)[1] == STORE for call in self.waits)


def call_key(call: CollectiveCall) -> tuple[Any, ...]:
    """Return the key that counts a call: one for all calls of a group, or for the messages of a pair."""
    if call.kind == "send":
        return call.group, "send", call.rank, call.ranks[call.root or 0]
    if call.kind == "recv":
        return call.group, "recv", None if call.root is None else call.ranks[call.root], call.rank
    if call.kind.startswith(STORE):
        return call.group, STORE
    if call.kind == NEW and not call.backend:  # a gathering before connecting
        return call.group, call.kind
    return call.group, "all"


def missing_ranks(call: CollectiveCall, notes: Sequence[PublishedState]) -> list[int]:
    """Return the ranks without a call of this collective, by their states."""
    key = call_key(call)
    ranks = call.ranks if key[1] in _BY_ALL else ()
    return [rank for rank in ranks if notes[rank].count_calls(*key) < call.seq]


def is_stuck(call: CollectiveCall, notes: Sequence[PublishedState]) -> bool:
    """Whether some rank has not come to ``call``, or to all earlier calls that block it."""
    kind = call_key(call)[1]
    if kind == STORE:
        return True  # all ranks that could set the key wait themselves
    if kind in _BY_ALL:
        return bool(missing_ranks(call, notes))
    first = [one for _, one in blocked_sends_and_receives(call, notes)]
    go_on = any(_has_other_half(one, notes) and not blocked_sends_and_receives(one, notes) for one in first)
    return not _has_other_half(call, notes) or bool(first) and not go_on


def blocked_sends_and_receives(
    call: CollectiveCall, notes: Sequence[PublishedState]
) -> list[tuple[CollectiveCall, CollectiveCall]]:
    """Return (call, blocker) for the send and the receive of ``call``'s message, where an earlier call blocks it."""
    message, message_of = (call.group, call.pair, call.seq), attrgetter("group", "pair", "seq")
    return [held for rank in call.pair for held in notes[rank].held if message_of(held[0]) == message]


def _has_other_half(call: CollectiveCall, notes: Sequence[PublishedState]) -> bool:
    """Whether the other half of a message was called."""
    group, kind, source, to = call_key(call)
    if source is None:  # sent messages less those received by name
        received = notes[to].count_calls
        others = sum(
            one.count_calls(group, "send", rank, to) - received(group, "recv", rank, to)
            for rank, one in enumerate(notes)
        )
    elif kind == "send":
        others = notes[to].count_calls(group, "recv", source, to)
    else:
        others = notes[source].count_calls(group, "send", source, to)
    return bool(others >= call.seq)


def unmet_calls(notes: Sequence[PublishedState]) -> list[CollectiveCall]:
    """Return the calls that are still pending when all ranks have ended, in the order of ranks."""
    return [call for one in notes for call in one.open if is_stuck(call, notes)]


def rank_states(notes: Sequence[PublishedState]) -> list[faults.RankState]:
    """Return the states of all ranks for the text of a deadlock."""
    found = []
    for rank, one in enumerate(notes):
        call = one.waits[0] if one.waits else None
        if call is not None and call.is_message and (halves := blocked_sends_and_receives(call, notes)):
            half, first = halves[0]
            call = first if half.rank == rank else call
            call.memo["held"] = half, first
        seqs = {key[0]: count for key, count in one.issued.items() if key[1] in _BY_ALL}
        what = ""
        if call is not None and call.kind.startswith(STORE):
            what, call = f"{call.kind}({call.group}) at {call.short_place}", None
        found.append(faults.RankState(rank, call, what, one.error, one.came, seqs, one.last, one.passes))
    return found
