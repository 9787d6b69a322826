"""Stores between processes: a rank that waits for a key is seen to wait, and does not keep others from the store.

Within C++ a wait would keep the connection to itself, and the lookout could not read the notes of other ranks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

from torch._C import _distributed_c10d as c10d
from torch.distributed import DistStoreError

from ...base.patches import Patch
from ..calls.call import Call
from ..rank.rank import aside
from . import lookout
from .keys import Keys

_FOR_GOOD = timedelta(seconds=60)  # a rank that waits for so long does not expect to wait in vain


def patches() -> Iterator[Patch]:
    """The methods of stores between processes that wait for a key."""
    for kind in (c10d.TCPStore, c10d.FileStore, c10d.PrefixStore):
        for name in ("get", "multi_get", "wait"):
            yield Patch(kind, name, _seen(name, getattr(kind, name)))


def _seen(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
    def waiting(store: Any, keys: str | Sequence[str], timeout: timedelta | None = None) -> Any:
        limit = store.timeout if timeout is None else timeout
        stood = _stand(store, [keys] if isinstance(keys, str) else keys, name, limit)
        if stood and name == "wait":
            return None
        return real(store, keys, *([] if timeout is None else [timeout]))

    return waiting


def _stand(store: Any, keys: Sequence[str], what: str, timeout: timedelta) -> bool:
    """Wait until ``keys`` are there; False where nobody watches: C++ waits then. Raises DistStoreError in time."""
    if not lookout.is_on():
        return False
    with aside():
        _stand_aside(store, keys, what, timeout)
    return True


def _stand_aside(store: Any, keys: Sequence[str], what: str, timeout: timedelta) -> None:
    there = Keys(store, keys)
    if there.wait(min(lookout.SOON, timeout.total_seconds())):
        return
    call = Call(f"store.{what}")
    call.group = ", ".join(map(repr, keys))
    call.locate()
    left = timeout - timedelta(seconds=lookout.SOON)
    # Another thread of this process may be about to set it, and a rank may mean to go on after a short wait.
    alone = all(one.daemon or one is threading.current_thread() for one in threading.enumerate())
    if not lookout.stand(call, there.is_set, there, left, shown=alone and timeout >= _FOR_GOOD):
        # torch/csrc/distributed/c10d/TCPStore.cpp, doWait
        ms = int(timeout.total_seconds() * 1000)
        raise DistStoreError(f"wait timeout after {ms}ms, keys: {', '.join(keys)}")
