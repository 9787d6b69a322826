"""The stores of ranks in one process: keys and values that all ranks share and wait for."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed import DistStoreError

from labkit import turns
from labkit.base.language import say

from ..calls.call import CollectiveCall
from ..rank.rank import current_thread_rank
from .waiting import wait_for_ranks, yield_turn

_DEFAULT = timedelta(seconds=300)


def _to_bytes(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


class SharedStore(Store):
    """A rank's view of a store; all ranks share ``values``. Replaces TCPStore and FileStore."""

    def __init__(self, values: dict[str, bytes], host: str = "", port: int = 0) -> None:
        super().__init__()
        self._values, self.host, self.port = values, host, port
        if (rank := current_thread_rank()) is not None:
            rank.world.kept.append(self)  # C++ may hold the store alone, in a PrefixStore
        self._timeout = _DEFAULT

    @property
    def timeout(self) -> timedelta:
        return self._timeout

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout = timeout

    def set(self, key: str, value: Any) -> None:
        self._values[key] = _to_bytes(value)
        self._notify_waiters()

    def get(self, key: str) -> bytes:
        self._wait([key], "get")
        return self._values[key]

    def add(self, key: str, amount: int) -> int:
        if not amount:
            yield_turn()
        value = int(self._values.get(key, b"0")) + amount
        self._values[key] = str(value).encode()
        self._notify_waiters()
        return value

    def compare_set(self, key: str, expected: Any, desired: Any) -> bytes:
        now = self._values.get(key)
        if now is None and _to_bytes(expected) == b"" or now == _to_bytes(expected):
            self._values[key] = _to_bytes(desired)
            self._notify_waiters()
        return self._values.get(key, _to_bytes(expected))

    def check(self, keys: Sequence[str]) -> bool:
        if not self._has(keys):
            yield_turn()
        return self._has(keys)

    def _has(self, keys: Sequence[str]) -> bool:
        return all(key in self._values for key in keys)

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        self._wait(keys, "wait", timeout)

    def delete_key(self, key: str) -> bool:
        return self._values.pop(key, None) is not None

    def num_keys(self) -> int:
        yield_turn()
        return len(self.list_keys())

    def list_keys(self) -> list[str]:
        return list(self._values)

    def append(self, key: str, value: Any) -> None:
        self._values[key] = self._values.get(key, b"") + _to_bytes(value)
        self._notify_waiters()

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        self._wait(keys, "multi_get")
        return [self._values[key] for key in keys]

    def multi_set(self, keys: Sequence[str], values: Sequence[Any]) -> None:
        for key, value in zip(keys, values, strict=True):
            self._values[key] = _to_bytes(value)
        self._notify_waiters()

    def has_extended_api(self) -> bool:
        return True

    # C++ calls these names for a PrefixStore (torch/csrc/distributed/c10d/init.cpp, PythonStore).
    deleteKey, getNumKeys, compareSet, hasExtendedApi = delete_key, num_keys, compare_set, has_extended_api
    multiGet, multiSet, listKeys, setTimeout = multi_get, multi_set, list_keys, set_timeout

    def clone(self) -> SharedStore:
        return SharedStore(self._values, self.host, self.port)

    def _notify_waiters(self) -> None:
        if turns.current_task() is None:
            turns.wake_stalled()

    def _wait(self, keys: Sequence[str], what: str, timeout: timedelta | None = None) -> None:
        if self._has(keys):
            return
        call = CollectiveCall(f"store.{what}")
        call.group = say(en=f"store, keys {list(keys)}", zh=f"store，键 {list(keys)}")
        rank = current_thread_rank()
        call.rank = -1 if rank is None else rank.number
        call.locate()
        others = [] if rank is None else [one for one in rank.world.ranks if one is not rank]
        if not wait_for_ranks(call, lambda: self._has(keys), timeout or self._timeout, lambda: others):
            # torch/csrc/distributed/c10d/TCPStore.cpp, doWait
            ms = int((timeout or self._timeout).total_seconds() * 1000)
            raise DistStoreError(f"wait timeout after {ms}ms, keys: {', '.join(keys)}")


class TCPStore(SharedStore):
    """Replaces ``torch.distributed.TCPStore``: ranks that name the same port share values."""

    def __init__(self, host_name: str, port: int = 0, *args: Any, **options: Any) -> None:
        stores = _stores()
        port = port or 49152 + len(stores)
        super().__init__(stores.setdefault(("tcp", port), {}), host_name, port)
        timeout = options.get("timeout") or next((one for one in args if isinstance(one, timedelta)), None)
        if timeout is not None:
            self.set_timeout(timeout)


class FileStore(SharedStore):
    """Replaces ``torch.distributed.FileStore``: ranks that name the same file share values."""

    def __init__(self, file_name: str, world_size: int = -1) -> None:
        super().__init__(_stores().setdefault(("file", str(file_name)), {}))
        self.path = file_name


class HashStore(SharedStore):
    """Replaces ``torch.distributed.HashStore``, private to a rank."""

    def __init__(self) -> None:
        super().__init__({})


def shared_values(store: Any) -> object:
    """Return the values of ``store``, the same object in all ranks."""
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return getattr(store, "_values", None)


def _stores() -> dict[Any, dict[str, bytes]]:
    rank = current_thread_rank()
    return {} if rank is None else rank.world.stores
