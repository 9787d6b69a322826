"""The note that each rank which is a process writes of itself for the others, and what follows from all notes.

Pure: notes in, answers out. :mod:`.lookout` writes and reads them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ..calls import faults
from ..calls.call import Call
from . import packing

# Kinds of calls that are no collectives: to wait for a key of a store ("store.get", …), to make a group, to wait for
# something of the process's own (a lock, a queue), which stands in the call's group.
STORE, NEW, OWN = "store", "new_group", "own"
# The keys of collectives, which all members of a group make.
_BY_ALL = ("all", NEW)


@dataclass
class Note:
    """The state of one rank.

    number  how many notes it has written; 0 if it has not begun.
    looks   how often it has looked into a store for what it waits for.
    state   "runs", "waits" or "ended".
    waits   the calls that it waits in, packed; ``open`` those that it has ended without waiting for.
    issued  how many calls of each key it has made; ``last`` is the last of them, packed.
    came    how often it has come to a line with a call of a kind.
    error   the name and the text of what it ended by.
    passes  how often it has run a wrapped model's forward in training.
    """

    number: int = 0
    looks: int = 0
    state: str = "runs"
    waits: list[bytes] = field(default_factory=list)
    open: list[bytes] = field(default_factory=list)
    issued: dict[Any, int] = field(default_factory=dict)
    came: dict[tuple[str, str], int] = field(default_factory=dict)
    last: bytes | None = None
    error: tuple[str, str] | None = None
    passes: int = 0

    def made(self, *key: Any) -> int:
        """The number of calls of this key that it has made."""
        return self.issued.get(key, 0)

    @property
    def waits_in_a_store(self) -> bool:
        return any(key_of(packing.told(text)[0])[1] == STORE for text in self.waits)


def key_of(call: Call) -> tuple[Any, ...]:
    """The key under which a call is counted: with all those of its group, or the messages of its pair."""
    if call.kind == "send":
        return call.group, "send", call.rank, call.ranks[call.root or 0]
    if call.kind == "recv":
        return call.group, "recv", None if call.root is None else call.ranks[call.root], call.rank
    if call.kind.startswith(STORE):
        return call.group, STORE
    if call.kind == OWN or call.kind == NEW and not call.backend:  # members gather before they connect
        return call.group, call.kind
    return call.group, "all"


def missing(call: Call, notes: Sequence[Note]) -> list[int]:
    """The ranks that have not come to a collective, as far as they have noted it."""
    key = key_of(call)
    return [rank for rank in call.ranks if notes[rank].made(*key) < call.seq] if key[1] in _BY_ALL else []


def is_stuck(text: bytes, notes: Sequence[Note]) -> bool:
    """Whether somebody has still to come to this packed call."""
    call = packing.told(text)[0]
    key = key_of(call)
    if key[1] in (STORE, OWN):
        return True  # all that could set the key wait themselves
    if key[1] in _BY_ALL:
        return bool(missing(call, notes))
    group, kind, source, to = key
    if source is None:  # what was sent to it, less what it has received by name
        received = notes[to].made
        others = sum(
            one.made(group, "send", rank, to) - received(group, "recv", rank, to)
            for rank, one in enumerate(notes)
        )
    elif kind == "send":
        others = notes[to].made(group, "recv", source, to)
    else:
        others = notes[source].made(group, "send", source, to)
    return bool(others < call.seq)


def unmet(notes: Sequence[Note]) -> list[Call]:
    """The calls that ranks, all of whom have ended, made and nobody came to, in the order of ranks."""
    return [packing.described(text) for one in notes for text in one.open if is_stuck(text, notes)]


def standings(notes: Sequence[Note]) -> list[faults.Standing]:
    """The places of all ranks, for the text of a deadlock."""
    found = []
    for rank, one in enumerate(notes):
        call = packing.described(one.waits[0]) if one.waits else None
        last = packing.described(one.last) if one.last else None
        seqs = {key[0]: count for key, count in one.issued.items() if key[1] in _BY_ALL}
        what = ""
        if call is not None and call.kind == OWN:
            what, call = call.group, None
        elif call is not None and call.kind.startswith(STORE):
            what, call = f"{call.kind}({call.group}) at {call.short_place}", None
        found.append(faults.Standing(rank, call, what, one.error, one.came, seqs, last, one.passes))
    return found
