"""Child processes: they see a machine like this one's; one that was forked may have lost the GPUs.

What a child is told stands in its environment (:mod:`labkit.children.told`): here are the rows that put
it there, and those for what starts processes with an environment of its own or of another time.

A process that was forked after a GPU was chosen or something put on one cannot use the GPUs: that is CUDA's own rule,
and its own error. Before the first use of a GPU a fork is harmless. Each process counts its own memory. A tensor that
is sent to another process is there on the same GPU, as by CUDA's IPC: both see one memory, and the sender's machine
counts it.
"""

from __future__ import annotations

import functools
import multiprocessing.forkserver
import multiprocessing.spawn
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from multiprocessing import reduction
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch.multiprocessing import get_sharing_strategy, reductions

from ...base.language import say
from ...base.patches import Patch
from ...base.tree import tensors_in
from ...children import told as children
from ..handlers import HANDLERS
from ..ops.mode import MachineMode
from ..state.cuda_errors import cuda_error
from ..state.in_use import machine_here, machine_in_use
from ..state.marks import MARK, Mark
from ..state.placement import gpu_of
from .refused import Absent

if TYPE_CHECKING:
    from ..machine import Machine

_BAD_FORK = (
    "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the "
    "'spawn' start method"
)


def patches(machine: Machine) -> Iterator[Patch]:
    """torch.cuda knows what a fork does to it; other processes are told of the machine, and get its tensors."""
    told = machine.told
    yield Patch(torch.cuda, "_is_in_bad_fork", lambda: machine.gpu is _refuse)

    yield Patch(ENVIRONMENT, children.MACHINE, told)
    yield Patch(PYTHONPATH, _BOOTSTRAP, True)
    yield Patch(subprocess.Popen, "__init__", _handing_on(subprocess.Popen.__init__, told))
    yield Patch(multiprocessing.spawn, "get_preparation_data", _telling(told))
    # The server outlives the machine: it is to know of none, and what it forks is told as it begins.
    server = multiprocessing.forkserver.ForkServer
    yield Patch(server, "ensure_running", _untold(server.ensure_running))

    storage = torch.UntypedStorage
    if machine.backing.type == "cpu":
        yield Patch(storage, "is_shared", _always_on_a_gpu(storage.is_shared))
        yield Patch(storage, "_share_cuda_", _share)
        yield Patch(storage, "_new_shared_cuda", staticmethod(_receive))
        yield Patch(storage, "_release_ipc_counter_cuda", staticmethod(lambda *_: None))
    else:
        yield Patch(storage, "_share_cuda_", _not_shared)
    if torch.distributed.is_available():
        groups = torch.distributed.distributed_c10d
        yield Patch(groups, "BarrierOptions", _barrier_options(machine))
        yield Patch(groups, "_new_process_group_helper", _without_nccl())


# What children are told.


class _Environment:
    """``os.environ`` as an owner of patches: a variable is an attribute."""

    __name__ = "os.environ"

    @property
    def __dict__(self) -> dict[str, str]:  # type: ignore[override]
        values = {name: value for name, value in os.environ.items() if name != children.PATH}
        return {name: sys.intern(value) for name, value in values.items()}  # the same object at every look

    def __getattr__(self, name: str) -> str:
        try:
            return vars(self)[name]
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name: str, value: str) -> None:
        os.environ[name] = value

    def __delattr__(self, name: str) -> None:
        os.environ.pop(name, None)  # the user may have taken it out already


class _PythonPath:
    """``PYTHONPATH`` as an owner of patches: whether the bootstrap's folder is in it. The rest is the user's."""

    __name__ = "os.environ['PYTHONPATH']"

    @property
    def __dict__(self) -> dict[str, bool]:  # type: ignore[override]
        path = os.environ.get(children.PATH, "")
        return {_BOOTSTRAP: True} if children.FOLDER in path.split(os.pathsep) else {}

    def __getattr__(self, name: str) -> bool:
        if name in vars(self):
            return True
        raise AttributeError(name)

    _empty = False  # whether it was there, and empty

    def __setattr__(self, name: str, value: bool) -> None:
        before = os.environ.get(children.PATH)
        type(self)._empty = before == ""
        os.environ[children.PATH] = children.with_bootstrap(before)

    def __delattr__(self, name: str) -> None:
        left = children.without_bootstrap(os.environ.pop(children.PATH, ""))
        if left or self._empty:
            os.environ[children.PATH] = left


ENVIRONMENT, PYTHONPATH = _Environment(), _PythonPath()
_BOOTSTRAP = "labkit/children/bootstrap"


def _handing_on(start: Callable[..., None], told: str) -> Callable[..., None]:
    """``Popen.__init__``, which hands on what children are told where the caller made their environment."""

    @functools.wraps(start)
    def init(process: Any, args: Any, *more: Any, env: Any = None, **options: Any) -> None:
        if env is None and not vars(PYTHONPATH):  # the script has set a PYTHONPATH of its own
            env = os.environ
        if env is not None:
            env = children.told({os.fsdecode(name): os.fsdecode(value) for name, value in env.items()}, told)
        start(process, args, *more, **({} if env is None else {"env": env}), **options)

    return init


def _telling(told: str) -> Callable[[str], dict[str, Any]]:
    """What multiprocessing sends to a process that it starts, the first of which the process reads."""
    prepare = multiprocessing.spawn.get_preparation_data

    @functools.wraps(prepare)
    def prepared(name: str) -> dict[str, Any]:
        return {**prepare(name), "name": _Name(name, told)}

    return prepared


class _Name(str):
    """The name of a process, from whose unpickling on the process sees the machine."""

    told: str

    def __new__(cls, name: str, told: str) -> _Name:
        made = super().__new__(cls, name)
        made.told = told
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        # By the file, since the child reads this before it has a path on which labkit is.
        path = children.with_bootstrap(os.environ.get(children.PATH))
        follow = f"__import__('runpy').run_path({children.BOOTSTRAP!r})['follow']({self.told!r}, {path!r})"
        return eval, (f"({follow}, {str(self)!r})[1]",)


def _untold(start: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(start)
    def ensure_running(server: Any) -> None:
        told, path = os.environ.pop(children.MACHINE, None), os.environ.get(children.PATH)
        delattr(PYTHONPATH, _BOOTSTRAP)
        try:
            start(server)
        finally:
            for name, value in ((children.MACHINE, told), (children.PATH, path)):
                if value is not None:
                    os.environ[name] = value

    return ensure_running


# Forks.


@functools.cache
def watch_forks() -> None:
    """From now on a forked child of this process cannot use GPUs that were used before the fork."""

    def in_child() -> None:
        machine = machine_in_use()
        if machine is not None and machine.used():
            # Instead of asking at each use whether this is a child.
            machine.gpu = _refuse  # type: ignore[method-assign]
            machine.mode.__class__ = _Lost

    os.register_at_fork(after_in_child=in_child)


class _Lost(MachineMode):
    """The mode in such a child: what was on a GPU can be asked for its shape and its device, and no more."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        asks = HANDLERS.get(func, self) is None or getattr(func, "__name__", "") == "__get__"
        if not asks and any(map(gpu_of, tensors_in(*args, *(kwargs or {}).values()))):
            # A kernel on a tensor from before the fork meets it; torch.cuda asks first and says _BAD_FORK.
            raise cuda_error(3, "InitializationError", "initialization error")
        return super().__torch_function__(func, types, args, kwargs)


def _refuse(index: int | None) -> NoReturn:
    raise RuntimeError(_BAD_FORK)


# Tensors.


class _Handle:
    """Stands for CUDA's handle of the memory of a storage: the shared memory of the host that it really is."""

    def __init__(self, key: Any, storage: torch.UntypedStorage) -> None:
        self.key, self.storage = key, storage

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Handle) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __reduce__(self) -> tuple[Any, ...]:
        storage = self.storage
        if get_sharing_strategy() == "file_system":
            name = storage._share_filename_cpu_()
            storage._shared_incref()
            return _opened_by_name, name
        descriptor, size = storage._share_fd_cpu_()
        return _opened, (reduction.DupFd(descriptor), size)


def _opened(sent: Any, size: int) -> _Handle:
    descriptor = sent.detach()
    try:
        return _Handle(
            reductions.fd_id(descriptor), torch.UntypedStorage._new_shared_fd_cpu(descriptor, size)
        )
    finally:
        os.close(descriptor)


def _opened_by_name(manager: bytes, name: bytes, size: int) -> _Handle:
    storage: Any = torch.UntypedStorage._new_shared_filename_cpu(manager, name, size)
    return _Handle(name, storage._shared_decref())


def _share(storage: torch.UntypedStorage) -> tuple[Any, ...]:
    """torch/csrc/StorageSharing.cpp, THPStorage_shareCuda: the device, the handle, the size, …"""
    gpu = getattr(storage, MARK).gpu
    if gpu is None:
        raise RuntimeError("_share_cuda_: only available on CUDA")
    machine_here().gpu(gpu.index)  # a forked child has lost it
    size = storage.nbytes()
    return gpu.index, _Handle(id(storage), storage) if size else None, size, 0, b"", 0, b"", False


def _always_on_a_gpu(real: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """torch/csrc/StorageSharing.cpp, THPStorage_isShared: memory of a GPU always is."""

    @functools.wraps(real)
    def is_shared(storage: Any) -> bool:
        return getattr(storage, MARK).gpu is not None or real(storage)

    return is_shared


def _receive(device: int, handle: _Handle, *_: object) -> torch.UntypedStorage:
    """It is on the sender's GPU and takes none of this process's memory there."""
    setattr(handle.storage, MARK, Mark(machine_here().gpu(device), 0))
    return handle.storage


def _not_shared(storage: torch.UntypedStorage, *_: object) -> NoReturn:
    if storage.device.type != "cuda":
        raise RuntimeError("_share_cuda_: only available on CUDA")
    raise Absent(
        say(
            en=f"a tensor on {storage.device} cannot be sent to another process while the values are on a real GPU "
            "(backing): send it from the host (.cpu()), and move it to its GPU over there",
            zh=f"数值存放在真 GPU 上（backing）时，{storage.device} 上的张量不能发给别的进程："
            "先用 .cpu() 移到主机再发，到了那边再移到 GPU",
        )
    )


# Process groups.


def _without_nccl() -> Callable[..., Any]:
    """The making of a process group, which says what there is instead of NCCL."""
    groups = torch.distributed.distributed_c10d
    make = groups._new_process_group_helper

    @functools.wraps(make)
    def made(size: int, rank: int, ranks: list[int], backend: Any, *args: Any, **kwargs: Any) -> Any:
        if "nccl" in groups.BackendConfig(backend).get_device_backend_map().values():
            raise RuntimeError(
                # PyTorch's own words, and what to do.
                "Distributed package doesn't have NCCL built in"
                + say(
                    en=": a simulated machine that a program opened itself has none. Run the script with `labkit "
                    "torchrun` or `labkit run`, or the cell with %%ranks. "
                    'init_process_group("gloo") works here too, for tensors on the GPUs as well',
                    zh="：程序自己打开的模拟机器没有 NCCL。脚本请用 `labkit torchrun` 或 `labkit run` 运行，"
                    "单元格请用 %%ranks。"
                    '这里也可以用 init_process_group("gloo")，GPU 上的张量也行',
                )
            )
        return make(size, rank, ranks, backend, *args, **kwargs)

    return made


def _barrier_options(machine: Machine) -> type:
    """The class of a barrier's options, whose device is looked at and not used: the tensor it is for waits on the host.

    torch/csrc/distributed/c10d/ProcessGroup.hpp, barrier.
    """
    real: Any = torch.distributed.distributed_c10d.BarrierOptions

    class BarrierOptions(real):  # type: ignore[misc]
        @property
        def device(self) -> Any:
            return real.device.__get__(self)

        @device.setter
        def device(self, wanted: torch.device) -> None:
            gpu = machine.resolve(wanted)
            real.device.__set__(self, torch.device("cpu") if gpu is not None else wanted)

    return BarrierOptions
