"""Patches of torch in a process that inherits the machine, and may be one rank of several."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

from torch._C import _distributed_c10d as c10d

from labkit import turns
from labkit.base.patches import Patch, Patches
from simgpu import machine_in_use

from ..calls import faults
from ..calls.call import CollectiveCall
from ..group import group_patches as of_groups
from ..rank import cuda_state
from ..rank.clock import TimedRank
from ..rank.rank import this_process
from ..rank.visible_gpus import WatchedEnvironment, gpus_of_environment
from . import deadlock_detector
from .store_transport import StoreTransport

environ: Any = os.environ  # whose dictionary is _data


@functools.cache
def inherit() -> None:
    """Make ``nccl`` available: groups of processes."""
    own = cuda_state.CudaState(_total_bytes)
    Patches(
        lambda: [*of_groups.patches(StoreTransport), *_store_patches(), *cuda_state.patches(lambda: own)]
    ).put_in()
    _begin_rank()
    variables = WatchedEnvironment(environ._data)

    def apply_visible_gpus() -> None:
        """Apply the process's change of CUDA_VISIBLE_DEVICES. CUDA reads it only before its first use."""
        machine = machine_in_use()
        if machine is None or own.is_initialized():
            return
        gpus_of_environment(machine).show(machine)
        own.begin_turn()
        if this_process.rank is not None:
            this_process.rank.gpus, this_process.rank.chose_gpus = machine.gpus, True

    variables.on_change = apply_visible_gpus
    environ._data = variables


def _begin_rank() -> None:
    """Make the process the rank in the environment. A child of this process is another one."""
    environment, machine = os.environ, machine_in_use()
    if machine is None or not {"RANK", "LOCAL_RANK"} <= environment.keys():
        return
    node = int(environment.get("GROUP_RANK", "0"))
    me = TimedRank(int(environment["RANK"]), int(environment["LOCAL_RANK"]), node, machine.gpus)
    this_process.rank = me
    os.register_at_fork(after_in_child=_forget_rank)
    me.begin_turn()


def _forget_rank() -> None:
    this_process.rank = None


def _total_bytes() -> int:
    machine = machine_in_use()
    return sum(gpu.total() for gpu in machine.gpus) if machine is not None else 0


_FOR_GOOD = timedelta(seconds=60)  # with a shorter timeout, a rank may expect to wait in vain


def _store_patches() -> Iterator[Patch]:
    """Let ranks wait for keys in Python, so that the detector sees the wait.

    C++ would keep the connection to the store to itself, and the detector could not read the states of other ranks.
    """
    for kind in (c10d.TCPStore, c10d.FileStore, c10d.PrefixStore):
        for name in ("get", "multi_get", "wait"):
            yield Patch.wrap(kind, name, _wait)


def _wait(
    real: Callable[..., Any], store: Any, keys: str | Sequence[str], timeout: timedelta | None = None
) -> Any:
    names = [keys] if isinstance(keys, str) else list(keys)
    watch = deadlock_detector.active_detector()
    if watch is not None and not store.check(names):  # without a detector, C++ waits
        with turns.keep_turn():
            _wait_for_keys(watch, store, names, real.__name__, store.timeout if timeout is None else timeout)
        if real.__name__ == "wait":
            return None
    return real(store, keys, *([] if timeout is None else [timeout]))


def _wait_for_keys(
    watch: deadlock_detector.DeadlockDetector, store: Any, keys: list[str], what: str, timeout: timedelta
) -> None:
    """Wait until the keys are there. Raises DistStoreError after ``timeout``."""
    call = CollectiveCall.of_store(what, keys)
    # Another thread of this process may set the key, and with a short timeout the rank may mean to go on.
    idle = all(one.daemon or one is threading.current_thread() for one in threading.enumerate())
    if not watch.wait(call, lambda: store.check(keys), timeout, shown=idle and timeout >= _FOR_GOOD):
        raise faults.store_timeout_error(keys, timeout)
