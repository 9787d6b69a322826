"""The changes in torch while ranks are there that share this process."""

from __future__ import annotations

import functools
import inspect
import sys
import threading
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch.distributed import distributed_c10d

from ... import turns
from ...base.patches import Patch
from ...machine import tracebacks as frames
from ...machine.machine import Machine
from ..group import torch_patches as of_groups
from ..processes.transport import Gloo
from ..rank import blocking, cuda, loading, system
from ..rank.own_modules import is_shared_file
from ..rank.rank import here, rank_here
from . import profiling, store


def patches(module_loaded: Callable[[], object]) -> Iterator[Patch]:
    """All rows. ``module_loaded()`` is called when a rank has imported something."""
    yield Patch(distributed_c10d, "_world", Worlds(distributed_c10d._world))
    yield Patch(type(dist.group), "WORLD", _world_group())
    yield from of_groups.patches(Gloo)
    for owner in (dist, distributed_c10d, import_module("torch.distributed.rendezvous"), c10d):
        for kind in (store.TCPStore, store.FileStore, store.HashStore):
            if hasattr(owner, kind.__name__):
                yield Patch(owner, kind.__name__, kind)
    yield from cuda.patches(_cuda_here)
    yield Patch(Machine, "used", _used(Machine.used))
    yield from loading.patches(module_loaded)
    yield from _of_meshes()
    yield from _of_threads()
    yield from frames.of_texts(rank_here)
    yield from system.patches()
    yield from blocking.patches()
    yield from profiling.patches()


def _used(used: Callable[[Machine], bool]) -> Callable[[Machine], bool]:
    def used_by_rank(machine: Machine) -> bool:
        return used(machine) if here.rank is None else here.rank.cuda.is_initialized()

    return used_by_rank


def _cuda_here() -> cuda.Cuda | None:
    return None if here.rank is None else here.rank.cuda


# What distributed_c10d._World keeps in globals of the module and has properties for.
_KEPT = {
    "pg_map": dict, "pg_names": dict, "pg_group_ranks": dict, "pg_backend_config": dict, "group_count": int,
    "tags_to_pg": dict, "pg_to_tag": dict, "pg_coalesce_state": dict, "comms": list,
}  # fmt: skip


class _OwnGroups(type(distributed_c10d._world)):  # type: ignore[misc]  # a class in a variable
    """The groups of one rank: what torch keeps for the process is in this object's own attributes."""

    def __init__(self) -> None:
        super().__init__()
        for name, kind in _KEPT.items():
            setattr(self, name, kind())


for _name in _KEPT:
    setattr(_OwnGroups, _name, None)  # instead of the property


class Worlds:
    """Stands for ``distributed_c10d._world``: each rank's own groups, in its threads."""

    def __init__(self, outside: Any) -> None:
        object.__setattr__(self, "_outside", outside)

    def _own(self) -> Any:
        rank = here.rank
        if rank is None:
            return self._outside
        if rank.groups is None:
            rank.groups = _OwnGroups()
        return rank.groups

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._own(), name, value)


def _world_group() -> Any:
    """``group.WORLD``, which some modules take as the default of a parameter, when they are imported.

    They are imported once, by whichever rank is the first, and must not keep its group: None means the same to them.
    """

    def get(cls: type) -> Any:
        caller = sys._getframe(1)
        importing = not caller.f_code.co_flags & inspect.CO_OPTIMIZED  # the code of a module or of a class
        if importing and is_shared_file(caller.f_code.co_filename):
            return None
        own = here.rank and here.rank.groups
        return (own or distributed_c10d._world).default_pg

    def set_(cls: type, group: Any) -> None:
        distributed_c10d._world.default_pg = group

    return property(get, set_)


def _of_meshes() -> Iterator[Patch]:
    """A mesh of one rank is not that of another: DTensor's caches would hand one rank the other's."""
    from torch.distributed import device_mesh

    mesh: Any = device_mesh.DeviceMesh

    def get(self: Any) -> int | None:
        return self.__dict__.get("_labkit_rank")  # type: ignore[no-any-return]

    def set_(self: Any, value: object) -> None:
        rank = rank_here()
        self.__dict__["_labkit_rank"] = value if rank is None else rank.number

    yield Patch(mesh, "_thread_id", property(get, set_))


def _of_threads() -> Iterator[Patch]:
    """A thread that a rank starts is of this rank, though it takes no turns."""
    start, bootstrap = threading.Thread.start, threading.Thread._bootstrap_inner  # type: ignore[attr-defined]

    def start_of_rank(self: Any) -> None:
        if here.rank is not None:
            self._labkit_rank = here.rank
            # The rank waits for it at its end, and this process for nobody: a rank that is ended leaves it behind.
            self._labkit_waited_for, self._daemonic = not self.daemon, True
        start(self)

    def bootstrap_inner(self: Any) -> None:
        here.rank = self.__dict__.get("_labkit_rank")
        bootstrap(self)

    sleep = time.sleep

    @functools.wraps(sleep)
    def sleep_in_turn(seconds: float) -> None:
        if here.rank is None or turns.participant() is None or not seconds > 0:
            sleep(seconds)
        else:
            here.rank.sleep(seconds)

    yield Patch(time, "sleep", sleep_in_turn)
    yield Patch(threading.Thread, "start", start_of_rank)
    yield Patch(threading.Thread, "_bootstrap_inner", bootstrap_inner)
