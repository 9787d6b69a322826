"""A tensor that is sent to another process is there on the same GPU, as by CUDA's IPC.

Both processes see one memory, and the sender's machine counts it: each process counts its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from multiprocessing import reduction
from typing import Any, NoReturn

import torch
from torch.multiprocessing import get_sharing_strategy, reductions

from ....base.language import say
from ....base.patches import Patch
from ... import hooks
from ...state.gpu import TheMachine
from ...state.in_use import machine_here, replaces
from ...state.marks import MARK, Mark
from ...torch_api.absent import Absent


@hooks.patches.add
def patches(machine: TheMachine) -> Iterator[Patch]:
    """The methods of storages that torch.multiprocessing calls."""
    storage = torch.UntypedStorage
    if machine.backing.type != "cpu":
        yield Patch(storage, "_share_cuda_", _not_shared)
        return
    yield Patch(storage, "_share_cuda_", _share)
    yield Patch(storage, "_new_shared_cuda", staticmethod(_receive))
    yield Patch(storage, "_release_ipc_counter_cuda", staticmethod(lambda *_: None))


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
        storage = torch.UntypedStorage._new_shared_fd_cpu(descriptor, size)
        return _Handle(reductions.fd_id(descriptor), storage)
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


@replaces(torch.UntypedStorage, "is_shared")
def _is_shared(_: TheMachine, real: Callable[[Any], bool], storage: Any) -> bool:
    """torch/csrc/StorageSharing.cpp, THPStorage_isShared: memory of a GPU always is."""
    return getattr(storage, MARK).gpu is not None or real(storage)


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
