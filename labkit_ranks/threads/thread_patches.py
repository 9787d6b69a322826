"""Patches of Python and torch while ranks are threads of this process."""

from __future__ import annotations

import inspect
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch.autograd import profiler
from torch.distributed import distributed_c10d

from labkit import turns
from labkit.base.language import say
from labkit.base.patches import Patch
from simgpu import tracebacks as frames

from ..group import group_patches as of_groups
from ..processes.store_transport import StoreTransport
from ..rank import blocking_calls, cuda_state, system_calls
from ..rank.own_modules import is_shared_file
from ..rank.rank import Rank, current_thread_rank, pause_clock_in_imports, this_thread
from . import store


def patches() -> Iterator[Patch]:
    yield Patch(distributed_c10d, "_world", PerRankWorld(distributed_c10d._world))
    yield Patch(type(dist.group), "WORLD", _world_group())
    yield from of_groups.patches(StoreTransport)
    for owner in (dist, distributed_c10d, import_module("torch.distributed.rendezvous"), c10d):
        for kind in (store.TCPStore, store.FileStore, store.HashStore):
            if hasattr(owner, kind.__name__):
                yield Patch(owner, kind.__name__, kind)

    def cuda_here() -> cuda_state.CudaState | None:
        return None if this_thread.rank is None else this_thread.rank.cuda

    yield from cuda_state.patches(cuda_here)
    yield from pause_clock_in_imports()
    yield from _mesh_patches()
    yield from _group_name_patches()
    yield from _python_thread_patches()
    yield from frames.patch_printed_tracebacks(current_thread_rank)
    yield from system_calls.patches()
    yield from blocking_calls.patches()
    yield from _profiler_patches()


# Properties of distributed_c10d._World, which it keeps in globals of the module.
_KEPT = {
    "pg_map": dict, "pg_names": dict, "pg_group_ranks": dict, "pg_backend_config": dict, "group_count": int,
    "tags_to_pg": dict, "pg_to_tag": dict, "pg_coalesce_state": dict, "comms": list,
}  # fmt: skip


class _OwnGroups(type(distributed_c10d._world)):  # type: ignore[misc]  # mypy: a class in a variable
    """The process groups of one rank, in attributes instead of globals of the module."""

    def __init__(self) -> None:
        super().__init__()
        for name, kind in _KEPT.items():
            setattr(self, name, kind())


for _name in _KEPT:
    setattr(_OwnGroups, _name, None)  # instead of the property


class PerRankWorld:
    """Replaces ``distributed_c10d._world``: each rank's own groups, in its threads."""

    def __init__(self, outside: Any) -> None:
        object.__setattr__(self, "_outside", outside)

    def _own(self) -> Any:
        rank = this_thread.rank
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
    """Return ``group.WORLD`` as a property.

    Some modules use it as the default of a parameter during their import. The first rank imports them for all, so they
    must not keep its group: they get None, which means the same.
    """

    def get(cls: type) -> Any:
        caller = sys._getframe(1)
        importing = not caller.f_code.co_flags & inspect.CO_OPTIMIZED  # code of a module or class
        if importing and is_shared_file(caller.f_code.co_filename):
            return None
        own = this_thread.rank and this_thread.rank.groups
        return (own or distributed_c10d._world).default_pg

    def set_(cls: type, group: Any) -> None:
        distributed_c10d._world.default_pg = group

    return property(get, set_)


def _mesh_patches() -> Iterator[Patch]:
    """Number meshes by rank, so that DTensor's caches don't mix the meshes of different ranks."""
    from torch.distributed import device_mesh

    mesh: Any = device_mesh.DeviceMesh

    def get(self: Any) -> int | None:
        return self.__dict__.get("_labkit_rank")  # type: ignore[no-any-return]

    def set_(self: Any, value: object) -> None:
        rank = current_thread_rank()
        self.__dict__["_labkit_rank"] = value if rank is None else rank.number

    yield Patch(mesh, "_thread_id", property(get, set_))


class _Registered(threading.local):
    """The groups registered by name in C++ for the current thread."""

    names: dict[Any, str] = {}  # noqa: RUF012 (replaced, never changed)


_registered = _Registered()


def _register_groups() -> None:
    """Register all groups of the current rank by name in the current thread.

    C++ keeps the names for each thread (torch/csrc/distributed/c10d/RankLocal.hpp); a rank can have several threads.
    """
    made = this_thread.rank and this_thread.rank.groups
    if not made or _registered.names == made.pg_names:
        return
    for name in {*_registered.names.values(), *made.pg_names.values()}:
        c10d._unregister_process_group(name)
    for group, name in made.pg_names.items():
        c10d._register_process_group(name, group)
    _registered.names = dict(made.pg_names)


def _group_name_patches() -> Iterator[Patch]:
    """Find groups by name in all threads of their rank."""

    def find(real: Callable[..., Any], *args: Any) -> Any:
        _register_groups()
        return real(*args)

    modules = "distributed_c10d", "device_mesh", "tensor._collective_utils"
    for owner in (c10d, *(import_module(f"torch.distributed.{name}") for name in modules)):
        yield Patch.wrap(owner, "_resolve_process_group", find)
    # C++ looks up the name of the returned group.
    yield Patch.wrap(import_module("torch.distributed._functional_collectives"), "_resolve_group", find)


def _python_thread_patches() -> Iterator[Patch]:
    """Give threads the rank of the thread that starts them; they take no turns."""

    def start(real: Callable[[Any], None], self: Any) -> None:
        if this_thread.rank is not None:
            vars(self).setdefault("_labkit_rank", this_thread.rank)
            # The rank waits for the thread at its end. A daemon does not keep the process if the rank ends before.
            self._labkit_waited_for, self._daemonic = not self.daemon, True
        real(self)

    def begin(real: Callable[[Any], None], self: Any) -> None:
        this_thread.rank = self.__dict__.get("_labkit_rank")
        _register_groups()
        real(self)

    def sleep(real: Callable[[float], None], seconds: float) -> None:
        if this_thread.rank is None or turns.current_task() is None or not seconds > 0:
            real(seconds)
        else:
            this_thread.rank.sleep(seconds)

    yield Patch.wrap(time, "sleep", sleep)
    yield Patch.wrap(threading.Thread, "start", start)
    yield Patch.wrap(threading.Thread, "_bootstrap_inner", begin)


class EmptyProfile:
    """The result of a profile that could not begin because of another rank's."""

    def __bool__(self) -> bool:
        return False

    def events(self) -> list[Any]:
        return []

    experimental_event_tree = events

    def save(self, path: str) -> None:
        Path(path).write_text('{"traceEvents": []}', "utf-8")


def _profiler_patches() -> Iterator[Patch]:
    """Give PyTorch's profiler to one rank at a time, and warn the others, whose profiles stay empty.

    C++ keeps one session in a process (torch/csrc/autograd/profiler_kineto.cpp). A thread that begins and ends a
    second one in between ends the process by a segmentation fault.
    """
    theirs: Any = profiler  # torch has these from C
    begin, enable, disable = theirs._prepare_profiler, theirs._enable_profiler, theirs._disable_profiler
    whose: list[tuple[Rank | None, int]] = []

    def current_owner() -> tuple[Rank | None, int]:
        return this_thread.rank, threading.get_ident()

    def is_owner() -> bool:
        return bool(whose) and whose[0] == current_owner()

    def prepare(*args: Any, **options: Any) -> None:
        if not whose:
            whose.append(current_owner())
        if is_owner():
            begin(*args, **options)
        elif this_thread.rank is not None and whose[0][0] is not None:
            has, asks = whose[0][0].name, this_thread.rank.name
            en = f"{asks} profiles nothing: {has} has PyTorch's profiler, which is one for the process that the ranks "
            en += "share. Profile one rank, or run them with --processes"
            zh = f"{asks} 的分析结果为空：PyTorch 的 profiler 每个进程只有一个，现在由 {has} 占用，"
            zh += "而各 rank 同在一个进程里。请只分析一个 rank，或者加 --processes 运行"
            warnings.warn(say(en=en, zh=zh), stacklevel=4)

    def start(*args: Any, **options: Any) -> None:
        if not whose:  # emit_nvtx does not call prepare
            whose.append(current_owner())
        if is_owner():
            enable(*args, **options)

    def stop() -> Any:
        if not is_owner():
            return EmptyProfile()
        whose.clear()
        return disable()

    yield Patch(profiler, "_prepare_profiler", prepare)
    yield Patch(profiler, "_enable_profiler", start)
    yield Patch(profiler, "_disable_profiler", stop)
