"""The stores of ranks in one process: keys and values that all ranks share and wait for."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import HashStore as Values
from torch._C._distributed_c10d import PrefixStore, Store

from labkit import turns

from ..calls import faults
from ..calls.call import CollectiveCall
from ..rank.rank import current_thread_rank
from .waiting import wait_for_ranks, yield_turn

_DEFAULT = timedelta(seconds=300)


def _delegate(name: str, *, changes: bool = False, yields: bool = False) -> Any:
    """Return the method ``name``, answered by the shared values.

    changes   whether the call may set a key that others wait for; ``yields`` lets other ranks run before.
    """

    def method(self: SharedStore, *args: Any) -> Any:
        if yields:
            yield_turn()
        result = getattr(self._values, name)(*args)
        if changes and turns.current_task() is None:
            turns.wake_stalled()
        return result

    return method


class SharedStore(Store):
    """A rank's view of a store; all ranks share ``values``, a store of C++. Replaces TCPStore and FileStore."""

    def __init__(self, values: Store, host: str = "", port: int = 0) -> None:
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

    set, append, multi_set = (_delegate(name, changes=True) for name in ("set", "append", "multi_set"))
    compare_set = _delegate("compare_set", changes=True)
    delete_key, list_keys = _delegate("delete_key"), _delegate("list_keys")
    num_keys, has_extended_api = _delegate("num_keys", yields=True), _delegate("has_extended_api")

    def add(self, key: str, amount: int) -> int:
        if not amount:
            yield_turn()
        return _add(self, key, amount)  # type: ignore[no-any-return]

    def check(self, keys: Sequence[str]) -> bool:
        if not self._values.check(list(keys)):
            yield_turn()
        return self._values.check(list(keys))

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        self._wait(keys, "wait", timeout)

    def get(self, key: str) -> bytes:
        self._wait([key], "get")
        return self._values.get(key)

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        self._wait(keys, "multi_get")
        return self._values.multi_get(list(keys))

    # C++ calls these names for a PrefixStore (torch/csrc/distributed/c10d/init.cpp, PythonStore).
    deleteKey, getNumKeys, compareSet, hasExtendedApi = delete_key, num_keys, compare_set, has_extended_api
    multiGet, multiSet, listKeys, setTimeout = multi_get, multi_set, list_keys, set_timeout

    def clone(self) -> SharedStore:
        return SharedStore(self._values, self.host, self.port)

    def _wait(self, keys: Sequence[str], what: str, timeout: timedelta | None = None) -> None:
        keys = list(keys)
        if self._values.check(keys):
            return
        call, timeout = CollectiveCall.of_store(what, keys), timeout or self._timeout
        rank = current_thread_rank()
        call.rank = -1 if rank is None else rank.number
        others = [] if rank is None else [one for one in rank.world.ranks if one is not rank]
        if not wait_for_ranks(call, lambda: self._values.check(keys), timeout, lambda: others):
            raise faults.store_timeout_error(keys, timeout)


_add = _delegate("add", changes=True)


class TCPStore(SharedStore):
    """Replaces ``torch.distributed.TCPStore``: ranks that name the same port share values."""

    def __init__(self, host_name: str, port: int = 0, *args: Any, **options: Any) -> None:
        stores = _stores()
        port = port or 49152 + len(stores)
        super().__init__(stores.setdefault(("tcp", port), Values()), host_name, port)
        timeout = options.get("timeout") or next((one for one in args if isinstance(one, timedelta)), None)
        if timeout is not None:
            self.set_timeout(timeout)


class FileStore(SharedStore):
    """Replaces ``torch.distributed.FileStore``: ranks that name the same file share values."""

    def __init__(self, file_name: str, world_size: int = -1) -> None:
        super().__init__(_stores().setdefault(("file", str(file_name)), Values()))
        self.path = file_name


class HashStore(SharedStore):
    """Replaces ``torch.distributed.HashStore``, private to a rank."""

    def __init__(self) -> None:
        super().__init__(Values())


def shared_values(store: Any) -> object:
    """Return the values of ``store``, the same object in all ranks."""
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return getattr(store, "_values", None)


def _stores() -> dict[Any, Values]:
    rank = current_thread_rank()
    return {} if rank is None else rank.world.stores
