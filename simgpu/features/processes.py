"""Show child processes the same machine, by their environment (:mod:`simgpu.children.environment`).

The patches here change this process's environment, and whatever starts processes with a separate or outdated one.

A process forked after a use of CUDA (a GPU was chosen, or holds a tensor) has lost the GPUs, with CUDA's own error.

A tensor sent to another process arrives on the same GPU, as by CUDA's IPC. Both processes share its memory, and only
the sender's machine counts it.
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
from runpy import run_path
from typing import Any, NamedTuple, NoReturn

import torch
from torch.multiprocessing import get_sharing_strategy, reductions

from labkit.base.patches import Patch
from labkit.base.tree import tensors_in

from .. import hooks
from ..children import environment as children
from ..handlers import HANDLERS
from ..ops.mode import MachineMode
from ..state.current_machine import machine_in_use, replaces, require_machine
from ..state.errors import cuda_error
from ..state.gpu import TheMachine
from ..state.marks import MARK, Mark
from ..state.placement import gpu_of


@hooks.patches.add
def patches(machine: TheMachine) -> Iterator[Patch]:
    """Describe the machine in the environment, and tell torch.cuda about forks."""
    yield Patch(ENVIRONMENT, children.MACHINE, machine.description)
    yield Patch(ENVIRONMENT, children.ENTER, " ".join(children.ENTRIES))
    yield Patch(PYTHONPATH, _BOOTSTRAP, True)
    yield Patch(torch.cuda, "_is_in_bad_fork", lambda: machine.gpu is _refuse)


class _Environment:
    """``os.environ`` as an owner of patches, with variables as attributes."""

    __name__ = "os.environ"

    @property
    def __dict__(self) -> dict[str, str]:  # type: ignore[override]
        values = {name: value for name, value in os.environ.items() if name != children.PATH}
        return {name: sys.intern(value) for name, value in values.items()}  # the same object at each access

    def __setattr__(self, name: str, value: str) -> None:
        os.environ[name] = value

    def __delattr__(self, name: str) -> None:
        os.environ.pop(name, None)  # the user may have removed it


class _PythonPath:
    """``PYTHONPATH`` as an owner of patches, with one attribute: whether the bootstrap's folder is in it."""

    __name__ = "os.environ['PYTHONPATH']"

    @property
    def __dict__(self) -> dict[str, bool]:  # type: ignore[override]
        path = os.environ.get(children.PATH, "")
        return {_BOOTSTRAP: True} if children.FOLDER in path.split(os.pathsep) else {}

    _empty = False  # whether the variable existed, and was empty

    def __setattr__(self, name: str, value: bool) -> None:
        before = os.environ.get(children.PATH)
        type(self)._empty = before == ""
        os.environ[children.PATH] = children.with_bootstrap(before)

    def __delattr__(self, name: str) -> None:
        left = children.without_bootstrap(os.environ.pop(children.PATH, ""))
        if left or self._empty:
            os.environ[children.PATH] = left


ENVIRONMENT, PYTHONPATH = _Environment(), _PythonPath()
_BOOTSTRAP = "simgpu/children/bootstrap"


@replaces(subprocess.Popen, "__init__")
def _start(
    machine: TheMachine, real: Any, process: Any, args: Any, *more: Any, env: Any = None, **kwargs: Any
) -> None:
    """Describe the machine in an environment made by the caller, too."""
    if env is None and not vars(PYTHONPATH):  # the script has replaced PYTHONPATH
        env = os.environ
    if env is not None:
        texts = {os.fsdecode(name): os.fsdecode(value) for name, value in env.items()}
        kwargs["env"] = children.environment_with_machine(texts, machine.description)
    real(process, args, *more, **kwargs)


@replaces(multiprocessing.spawn, "get_preparation_data")
def _prepare(machine: TheMachine, real: Any, name: str) -> dict[str, Any]:
    """Add the machine to what multiprocessing sends to a process, which unpickles and ignores the first key."""
    return {"labkit": _Follow(machine.description), **real(name)}


class _Follow(NamedTuple):
    """Pickle by which a process runs the bootstrap, and sees the machine of ``description``."""

    description: str

    def __reduce__(self) -> tuple[Any, ...]:
        # Named by its file: labkit may not be on the path of the process yet.
        path = children.with_bootstrap(os.environ.get(children.PATH))
        return run_path, (
            children.BOOTSTRAP,
            {"FOLLOWED": (self.description, path, " ".join(children.ENTRIES))},
        )


@replaces(multiprocessing.forkserver.ForkServer, "ensure_running")
def _ensure_running(_: TheMachine, real: Any, server: Any) -> None:
    """Start the fork server, which outlives the machine, without a machine. Its forks get one when they begin."""
    text, path = os.environ.pop(children.MACHINE, None), os.environ.get(children.PATH)
    delattr(PYTHONPATH, _BOOTSTRAP)
    try:
        real(server)
    finally:
        for name, value in ((children.MACHINE, text), (children.PATH, path)):
            if value is not None:
                os.environ[name] = value


_BAD_FORK = (
    "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the "
    "'spawn' start method"
)


@hooks.machine_opened.add
def _watch_forks(_: TheMachine) -> None:
    """Take the GPUs from forked children of this process, if CUDA was used before the fork."""
    _register_fork_callback()


@functools.cache
def _register_fork_callback() -> None:
    def in_child() -> None:
        machine = machine_in_use()
        if machine is not None and machine.has_initialized_cuda():
            # Replaced here, so that no use of a GPU needs to check for a fork.
            machine.gpu = _refuse  # type: ignore[method-assign]
            machine.mode.answer_by(_answer_lost)

    os.register_at_fork(after_in_child=in_child)


def _answer_lost(mode: MachineMode, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    """Refuse operations on the GPU's tensors in such a child, except for reading their shape or device."""
    is_harmless = HANDLERS.get(func, mode) is None or getattr(func, "__name__", "") == "__get__"
    if not is_harmless and any(map(gpu_of, tensors_in(*args, *(kwargs or {}).values()))):
        # A kernel on a tensor from before the fork fails with this error; torch.cuda raises _BAD_FORK earlier.
        raise cuda_error(3, "InitializationError", "initialization error")
    return MachineMode.__torch_function__(mode, func, types, args, kwargs)


def _refuse(index: int | None) -> NoReturn:
    raise RuntimeError(_BAD_FORK)


@hooks.patches.add
def storages(machine: TheMachine) -> Iterator[Patch]:
    """Replace the methods of storages that torch.multiprocessing calls."""
    storage = torch.UntypedStorage
    yield Patch(storage, "_share_cuda_", _share)
    yield Patch(storage, "_new_shared_cuda", staticmethod(_receive))
    yield Patch(storage, "_release_ipc_counter_cuda", staticmethod(lambda *_: None))


class _Handle:
    """Replacement of CUDA's handle of a storage's memory: the host's shared memory."""

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
            return _open_handle_by_name, name
        descriptor, size = storage._share_fd_cpu_()
        return _open_handle, (reduction.DupFd(descriptor), size)


def _open_handle(sent: Any, size: int) -> _Handle:
    descriptor = sent.detach()
    try:
        storage = torch.UntypedStorage._new_shared_fd_cpu(descriptor, size)
        return _Handle(reductions.fd_id(descriptor), storage)
    finally:
        os.close(descriptor)


def _open_handle_by_name(manager: bytes, name: bytes, size: int) -> _Handle:
    storage: Any = torch.UntypedStorage._new_shared_filename_cpu(manager, name, size)
    return _Handle(name, storage._shared_decref())


def _share(storage: torch.UntypedStorage) -> tuple[Any, ...]:
    """Return the device, the handle, the size, … (torch/csrc/StorageSharing.cpp, THPStorage_shareCuda)."""
    gpu = getattr(storage, MARK).gpu
    if gpu is None:
        raise RuntimeError("_share_cuda_: only available on CUDA")
    require_machine().gpu(gpu.index)  # raises in a forked child
    size = storage.nbytes()
    return gpu.index, _Handle(id(storage), storage) if size else None, size, 0, b"", 0, b"", False


@replaces(torch.UntypedStorage, "is_shared")
def _is_shared(_: TheMachine, real: Callable[[Any], bool], storage: Any) -> bool:
    """Whether memory is shared; a GPU's always is (torch/csrc/StorageSharing.cpp, THPStorage_isShared)."""
    return getattr(storage, MARK).gpu is not None or real(storage)


def _receive(device: int, handle: _Handle, *_: object) -> torch.UntypedStorage:
    """Return the received storage, marked as on the sender's GPU with no bytes."""
    setattr(handle.storage, MARK, Mark(require_machine().gpu(device), 0))
    return handle.storage
