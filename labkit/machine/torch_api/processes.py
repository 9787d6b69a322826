"""Child processes: a spawned one has a machine like this one's, a forked one may have lost the GPUs.

A process that was forked after something was put on a GPU cannot use the GPUs: that is CUDA's own rule, and
its own error. Before the first use of a GPU a fork is harmless. Processes share nothing: each counts its own
memory.
"""

from __future__ import annotations

import functools
import multiprocessing.spawn
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from ...base.patches import Patch
from ..in_use import machine_in_use
from .refused import Absent

if TYPE_CHECKING:
    from ..machine import Machine

_BAD_FORK = (
    "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the "
    "'spawn' start method"
)


def patches(machine: Machine) -> Iterator[Patch]:
    """torch.cuda knows what a fork does to it; a spawned process begins with a machine like this one."""
    yield Patch(torch.cuda, "_is_in_bad_fork", lambda: machine.gpu is _refuse)
    yield Patch(torch.UntypedStorage, "_share_cuda_", _share)
    command = multiprocessing.spawn.get_command_line

    def with_machine(**options: Any) -> list[str]:
        arguments = command(**options)
        if "-c" in arguments:  # python -c PROGRAM; a frozen program has no place for ours
            at = arguments.index("-c") + 1
            arguments[at] = f"{machine.program()}; {arguments[at]}"
        return arguments

    if torch.distributed.is_available():
        yield Patch(torch.distributed.distributed_c10d, "BarrierOptions", _barrier_options(machine))
    if machine.gpus:
        yield Patch(multiprocessing.spawn, "get_command_line", with_machine)


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


@functools.cache
def watch_forks() -> None:
    """From now on a forked child of this process cannot use GPUs that were used before the fork."""

    def in_child() -> None:
        machine = machine_in_use()
        if machine is not None and any(gpu.marks for gpu in machine.gpus):
            machine.gpu = _refuse  # type: ignore[method-assign]  # instead of asking at each use whether this is a child

    os.register_at_fork(after_in_child=in_child)


def _refuse(index: int | None) -> NoReturn:
    raise RuntimeError(_BAD_FORK)


def _share(storage: torch.UntypedStorage, *_: object) -> NoReturn:
    if storage.device.type != "cuda":
        raise RuntimeError("_share_cuda_: only available on CUDA")  # torch/csrc/StorageSharing.cpp
    raise Absent(
        f"a tensor on {storage.device} cannot be sent to another process: labkit's simulated machine has no "
        "CUDA IPC; send it from the host (.cpu()), and move it to its GPU over there"
    )
