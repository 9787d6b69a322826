"""What is changed in torch while ranks are there, as rows (see ``machine/torch_api``)."""

from __future__ import annotations

import functools
import hashlib
import inspect
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from importlib import import_module
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch._C import _get_function_stack_at, _len_torch_function_stack
from torch.distributed import distributed_c10d
from torch.nn.parallel import DistributedDataParallel

from ... import turns
from ...base.patches import Patch
from ...machine import tracebacks as frames
from ...machine.machine import Machine
from ...machine.ops.mode import MachineMode
from ...machine.state.placement import gpu_of
from ..calls.checks.nccl import NCCL_VERSION
from ..group import compiling
from ..group.group import Group, asking
from ..rank import system as process_rows
from ..rank.own_modules import is_shared_file
from ..rank.rank import here, rank_here, timed_here
from . import profiling, store

if TYPE_CHECKING:
    from .world import World


class NcclOptions(SimpleNamespace):
    """Stands for ``ProcessGroupNCCL.Options``."""

    def __init__(self, is_high_priority_stream: bool = False) -> None:
        super().__init__(
            is_high_priority_stream=is_high_priority_stream,
            _timeout=timedelta(minutes=10),
            backend="nccl",
            global_ranks_in_group=[],
            group_name="",
            group_desc="",
            split_from=None,
            split_color=None,
            config=SimpleNamespace(),
        )

    def __deepcopy__(self, memo: Any) -> NcclOptions:
        # split_group copies its parent's: the group that this one came from stays itself.
        copied = NcclOptions()
        copied.__dict__.update(self.__dict__, global_ranks_in_group=list(self.global_ranks_in_group))
        return copied


class NcclGroup(Group):
    """Stands for ``torch.distributed.ProcessGroupNCCL``."""

    Options = NcclOptions

    def __init__(
        self, store: Any, rank: int, size: int, options: Any = None, timeout: timedelta | None = None
    ) -> None:
        if isinstance(options, timedelta):
            options, timeout = None, options
        options = NcclOptions() if options is None else options
        if timeout is not None:
            options._timeout = timeout
        super().__init__(
            store, rank, size, backends=_backends("nccl"), ranks=options.global_ranks_in_group,
            timeout=options._timeout,
        )  # fmt: skip
        self.options = options
        self._name = options.group_name
        self._connect()


class GlooOptions(SimpleNamespace):
    """Stands for ``ProcessGroupGloo._Options``."""

    def __init__(self) -> None:
        super().__init__(
            _timeout=timedelta(minutes=30), _devices=[], _threads=2, backend="gloo",
            global_ranks_in_group=[], group_name="",
        )  # fmt: skip


class GlooGroup(Group):
    """Stands for ``torch.distributed.ProcessGroupGloo``."""

    Options = _Options = GlooOptions

    def __init__(
        self, store: Any, rank: int, size: int, timeout: timedelta | GlooOptions = timedelta(minutes=30)
    ) -> None:
        timeout = timeout._timeout if isinstance(timeout, GlooOptions) else timeout
        super().__init__(store, rank, size, backends=_backends("gloo"), ranks=_making.ranks, timeout=timeout)
        self._connect()

    @staticmethod
    def create_device(hostname: str = "", interface: str = "", lazy_init: bool | None = None) -> object:
        """A network device, which ranks in one process need none of."""
        return object()

    create_default_device = create_device


_Logger: Any = dist.Logger  # type: ignore[attr-defined]  # C's


class DdpLogger(_Logger):  # type: ignore[misc]
    """What DDP tells of itself. C++ asks for the group's name: is it nccl, is it gloo, and what to write down.

    If it is gloo, it takes the group for a ProcessGroupGloo of C++ and asks for its threads (logger.cpp,
    set_env_variables).
    """

    def set_construction_data_and_log(self, *args: Any) -> None:
        asking.times = 0
        try:
            super().set_construction_data_and_log(*args)
        finally:
            asking.times = 3


def _register_builtin(ddp: Any, kind: Any) -> None:
    """C++'s two hooks want the results of C++'s groups; Python's of the same names compute the same."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    half = kind == dist.BuiltinCommHookType.FP16_COMPRESS  # type: ignore[attr-defined]
    hook = default_hooks.fp16_compress_hook if half else default_hooks.allreduce_hook
    ddp.logger._set_comm_hook_name(str(kind))
    dist._register_comm_hook(ddp.reducer, ddp.process_group, hook)  # type: ignore[attr-defined]


class _Making(threading.local):
    """The group that this thread makes: its backend as asked for, its ranks."""

    backends: dict[str, str] | None = None
    ranks: list[int] = []  # noqa: RUF012 (replaced, never changed)


_making = _Making()


def _backends(alone: str) -> dict[str, str]:
    if _making.backends is not None:
        return _making.backends
    return {"cuda": "nccl"} if alone == "nccl" else {"cpu": "gloo", "cuda": "gloo"}


def _helper() -> Callable[..., Any]:
    make: Any = distributed_c10d._new_process_group_helper
    make = inspect.unwrap(make)  # without the machine's refusal of nccl

    @functools.wraps(make)
    def made(size: int, rank: int, ranks: list[int], backend: Any, *args: Any, **kwargs: Any) -> Any:
        config = distributed_c10d.BackendConfig(backend).get_device_backend_map()
        kinds: dict[str, str] = {kind: str(name) for kind, name in config.items() if kind in ("cpu", "cuda")}
        if str(backend) == "nccl":
            kinds = {"cuda": "nccl"}
        before = _making.backends, _making.ranks
        _making.backends, _making.ranks = kinds, list(ranks)
        try:
            group, its_store = make(size, rank, ranks, backend, *args, **kwargs)
        finally:
            _making.backends, _making.ranks = before
        device = kwargs.get("device_id")
        if device is not None and isinstance(group, Group):
            group.bound_device_id = device
        return group, its_store

    return made


class _OwnGroups(type(distributed_c10d._world)):  # type: ignore[misc]  # a class in a variable
    """What ``distributed_c10d._World`` keeps in the module's globals, of one rank."""

    def __init__(self) -> None:
        super().__init__()
        self.own: dict[str, Any] = {
            "pg_map": {}, "pg_names": {}, "pg_group_ranks": {}, "pg_backend_config": {}, "group_count": 0,
            "tags_to_pg": {}, "pg_to_tag": {}, "pg_coalesce_state": {}, "comms": [],
        }  # fmt: skip


def _own(name: str) -> Any:
    return property(lambda self: self.own[name], lambda self, value: self.own.__setitem__(name, value))


for _name in (
    "pg_map", "pg_names", "pg_group_ranks", "pg_backend_config", "group_count", "tags_to_pg", "pg_to_tag",
    "pg_coalesce_state", "comms",
):  # fmt: skip
    setattr(_OwnGroups, _name, _own(_name))


class Worlds:
    """Stands for ``distributed_c10d._world``: each rank's own groups, in its threads."""

    def __init__(self, outside: Any) -> None:
        object.__setattr__(self, "_outside", outside)

    def _own(self) -> Any:
        rank = here.rank
        if rank is None:
            return self._outside
        own = rank.__dict__.get("groups")
        if own is None:
            own = rank.__dict__["groups"] = _OwnGroups()
        return own

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._own(), name, value)


def table(world: World) -> Iterator[Patch]:
    """All rows."""
    yield Patch(distributed_c10d, "_world", Worlds(distributed_c10d._world))
    yield Patch(distributed_c10d, "_new_process_group_helper", _helper())
    yield from _of_groups()
    for owner in (dist, distributed_c10d, import_module("torch.distributed.rendezvous"), c10d):
        for kind in (store.TCPStore, store.FileStore, store.HashStore):
            if hasattr(owner, kind.__name__):
                yield Patch(owner, kind.__name__, kind)
    yield from _of_cuda()
    yield from of_imports(world.shardings.look)
    yield Patch(type(dist.group), "WORLD", _world_group())
    yield from _of_meshes()
    yield from _of_threads()
    yield from frames.of_texts(rank_here)
    yield from process_rows.patches()
    yield from profiling.patches()
    yield from compiling.patches()


def _of_model(ask: Callable[..., Any]) -> Callable[..., Any]:
    """C++ makes its tensors on the GPU of those that it is given, which need not be the current one."""

    @functools.wraps(ask)
    def asked(group: Any, tensors: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(group, Group) and tensors:
            group.home = gpu_of(tensors[0])
        return ask(group, tensors, *args, **kwargs)

    return asked


def _of_cuda() -> Iterator[Patch]:
    """Each rank's CUDA is initialised when it first uses it: init_device_mesh chooses a GPU for who has not."""
    asked: Callable[[], bool] = torch.cuda.is_initialized
    wanted: Callable[[], None] = torch.cuda._lazy_init
    later: Callable[..., None] = torch.cuda._lazy_call

    def is_initialized() -> bool:
        return asked() if here.rank is None else here.rank.uses_cuda()

    def lazy_init() -> None:
        if here.rank is None:
            wanted()
        else:
            here.rank.initialized = True

    def lazy_call(function: Callable[[], Any], **kind: Any) -> None:
        if here.rank is None:
            later(function, **kind)
        else:  # the generators are there, and need not wait
            function()

    for owner in (torch.cuda, torch.cuda.memory, torch.cuda.random):
        yield Patch(owner, "is_initialized", is_initialized)
        yield Patch(owner, "_lazy_init", lazy_init)
    for owner in (torch.cuda, torch.cuda.random):
        yield Patch(owner, "_lazy_call", lazy_call)
    used = Machine.used
    yield Patch(
        Machine, "used", lambda machine: used(machine) if here.rank is None else here.rank.uses_cuda()
    )
    for name in ("_cuda_setDevice", "_accelerator_setDeviceIndex"):
        yield Patch(torch._C, name, _choosing(getattr(torch._C, name)))


def _choosing(choose: Callable[[int], Any]) -> Callable[[int], Any]:
    def chosen(index: int) -> Any:
        result = choose(index)
        if here.rank is not None:
            here.rank.initialized = True
        return result

    return chosen


def of_imports(loaded: Callable[[], object] = bool) -> Iterator[Patch]:
    """What a module takes to be loaded, which the first rank alone may do for all, does not make it late.

    loaded   is called when a rank has loaded one.
    """
    bootstrap: Any = sys.modules["_frozen_importlib"]
    load = bootstrap._load_unlocked

    def load_untimed(spec: Any) -> Any:
        rank = timed_here()
        if rank is None or here.loading:
            return load(spec)
        here.loading = True
        try:
            with rank.untimed():
                return load(spec)
        finally:
            here.loading = False
            loaded()

    # Python leaves frames of this file out of tracebacks (Python/import.c, remove_importlib_frames).
    load_untimed.__code__ = load_untimed.__code__.replace(co_filename=load.__code__.co_filename)
    yield Patch(bootstrap, "_load_unlocked", load_untimed)


def of_processes() -> Iterator[Patch]:
    """The rows for a process that is one rank of several."""
    yield Patch(distributed_c10d, "_new_process_group_helper", _helper())
    yield from _of_groups()
    yield from compiling.patches()


def _has_torch_function() -> Callable[[Any], bool]:
    """The machine has nothing to say of a collective itself: what it is given, the group looks at."""

    groups: Any = distributed_c10d
    real: Callable[[Any], bool] = groups.has_torch_function

    def has_torch_function(arguments: Any) -> bool:
        if (
            _len_torch_function_stack() == 1
            and type(_get_function_stack_at(0)) is MachineMode
            and _PLAIN.issuperset(map(type, arguments))
        ):
            return False
        return real(arguments)

    return has_torch_function


_PLAIN = frozenset((torch.Tensor, torch.nn.Parameter, list, type(None)))


def _of_groups() -> Iterator[Patch]:
    yield Patch(distributed_c10d, "has_torch_function", _has_torch_function())
    for owner in (distributed_c10d, dist):
        yield Patch(owner, "_NCCL_AVAILABLE", True)
        yield Patch(owner, "ProcessGroupNCCL", NcclGroup)
        yield Patch(owner, "is_nccl_available", lambda: True)
        yield Patch(owner, "ProcessGroupGloo", GlooGroup)
    yield Patch(distributed_c10d, "default_pg_nccl_timeout", timedelta(minutes=10))
    yield Patch(c10d, "ProcessGroupNCCL", NcclGroup)
    major, minor, patch = NCCL_VERSION  # packed as torch/csrc/cuda/python_nccl.cpp has it
    yield Patch(torch._C, "_nccl_version", lambda: major << 32 | minor << 16 | patch)
    yield Patch(torch._C, "_nccl_version_suffix", lambda: b"")
    yield Patch(c10d, "_hash_tensors", _hash)
    yield Patch(dist, "Logger", DdpLogger)
    yield Patch(DistributedDataParallel, "_register_builtin_comm_hook", _register_builtin)
    for name in ("_verify_params_across_processes", "_broadcast_coalesced"):
        yield Patch(dist, name, _of_model(getattr(dist, name)))


def _hash(tensors: list[torch.Tensor]) -> int:
    """A number for the bytes of ``tensors``, which TORCH_DISTRIBUTED_DEBUG=DETAIL writes down."""
    found = hashlib.blake2b(digest_size=8)
    for tensor in tensors:
        found.update(tensor.cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return int.from_bytes(found.digest())


def _world_group() -> Any:
    """``group.WORLD``, which some modules take as the default of a parameter, when they are imported.

    They are imported once, by whichever rank is the first, and must not keep its group: None means the same to them.
    """

    def get(cls: type) -> Any:
        caller = sys._getframe(1)
        importing = not caller.f_code.co_flags & inspect.CO_OPTIMIZED  # the code of a module or of a class
        if importing and is_shared_file(caller.f_code.co_filename):
            return None
        own = here.rank and here.rank.__dict__.get("groups")
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
