"""Values in a store that the processes of a group share, of any length, and waits that don't block the store."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from typing import Any

from torch._C._distributed_c10d import FileStore, PrefixStore, Store, TCPStore

# The folder where ranks leave reports for the launcher, in a file for each attempt.
REPORTS = "LABKIT_REPORTS"

# Python's own sleep: the patched one would yield the turn.
sleep = time.sleep
# C++'s own functions: the patched ones would record a wait.
_get, _multi_get = Store.get, Store.multi_get

# Bytes of a piece of a value: a store takes up to 8 MiB at once (TCPStoreLibUvBackend.cpp, MAX_PAYLOAD_LEN).
_PIECE = 4 * 2**20
_COUNT = 4  # bytes before the first piece, for the number of the other pieces


def growing_pauses() -> Iterator[float]:
    """Yield growing pauses between two looks into a store, in seconds."""
    pause = 0.0005
    while True:
        yield pause
        pause = min(2 * pause, 0.03)


def key_prefix(name: str) -> str:
    """Return the prefix of keys for ``name`` in this attempt: a static rendezvous keeps the store over restarts."""
    return f"labkit/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/{name}"


def open_store(group: Any) -> Store:
    """Return a store for the calls of ``group``: its own, except for a file, which would keep all values for good."""
    own: Store = group.store
    while isinstance(own, PrefixStore):
        own = own.underlying_store
    if not isinstance(own, FileStore):
        return group.store  # type: ignore[no-any-return]
    if group.rank() == 0:
        made = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        group.store.set("labkit/port", str(made.port))
        return made
    return TCPStore("127.0.0.1", int(_get(group.store, "labkit/port")), wait_for_workers=False)


def write_value(store: Store, key: str, value: bytes) -> None:
    first, *others = [value[at : at + _PIECE] for at in range(0, len(value), _PIECE)]
    for number, piece in enumerate(others):
        store.set(f"{key}/{number}", piece)  # type: ignore[arg-type]  # bytes are taken too
    store.set(key, len(others).to_bytes(_COUNT) + first)  # type: ignore[arg-type]


def read_values(store: Store, keys: Sequence[str]) -> list[bytes]:
    """Return the values of ``keys``, which are all there."""
    found = []
    for key, first in zip(keys, _multi_get(store, list(keys)), strict=True):
        others = [f"{key}/{number}" for number in range(int.from_bytes(first[:_COUNT]))]
        found.append(b"".join([first[_COUNT:], *(_get(store, other) for other in others)]))
    return found


def delete_value(store: Store, key: str, value: bytes) -> None:
    for number in range(-(-len(value) // _PIECE) - 1):
        store.delete_key(f"{key}/{number}")
    store.delete_key(key)
