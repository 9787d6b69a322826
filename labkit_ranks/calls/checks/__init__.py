"""Check one rank's arguments, and refuse wrong ones in the words of NCCL, gloo and c10d.

The messages are PyTorch 2.13's: torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp, ProcessGroupGloo.cpp, Utils.hpp,
NCCLUtils.cpp, and NCCL's (src/misc/argcheck.cc). c10d's Python makes its own checks before (a group without the
caller, no group yet, lists that are no lists).

Where NCCL silently reads or writes past the end of a tensor, labkit raises an error in both languages
(:func:`.arguments.refuse_unchecked`).
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch.distributed import DistBackendError

from labkit.base.language import say, wrong

from ..call import CollectiveCall
from . import gloo, nccl


class CheckedGroup(Protocol):
    """The attributes of a process group that checks read."""

    bound_device_id: torch.device | None
    destroyed: bool


def check_call(call: CollectiveCall, group: CheckedGroup) -> None:
    """Raise PyTorch's error if the backend of ``call`` refuses its arguments."""
    backend = call.backend
    if not backend:
        # ProcessGroup.hpp, getBackend
        kind = call.device.partition(":")[0]
        error = RuntimeError(f"No backend type associated with device type {kind}")
        if kind != "cpu":
            raise error
        raise _add_advice(
            error,
            en=f"{call.kind} at {call.short_place} got a tensor on {call.device}, but NCCL only moves tensors between "
            "GPUs.\nDo: call `.cuda()` first, or call `init_process_group()` without a backend, which takes both "
            "(`cpu:gloo,cuda:nccl`).",
            zh=f"{call.short_place} 的 {call.kind} 得到的张量在 {call.device} 上；NCCL 只在 GPU 之间传输。\n"
            "怎么办：先 `.cuda()`，或者 `init_process_group()` 不写后端（即 `cpu:gloo,cuda:nccl`），两种都能用。",
        )
    if group.destroyed:
        # NCCLUtils.cpp, NCCLComm::getNcclComm
        raise DistBackendError(f"NCCL communicator was aborted on rank {call.at}. ")
    if backend == "nccl" and call.kind != "barrier":
        bound = group.bound_device_id
        if bound is not None and str(bound) != call.device:
            # ProcessGroupNCCL.cpp, initNCCLComm
            where = "on tensor not on device passed to init_process_group"
            raise DistBackendError(f"Attempt to perform collective {where}")
    # Both modules have a function for each kind of call.
    found = getattr(nccl if backend == "nccl" else gloo, call.kind, None)
    if found is not None:
        found(call)


def check_rank_and_size(rank: int, size: int, most: int | None) -> None:
    """Raise an error if ``rank`` is not in a group of ``size``, or ``size`` exceeds the number of ranks ``most``."""
    if not 0 <= rank < size:
        # NCCL: src/init.cc, ncclCommInitRankDev
        error = nccl.nccl_error("invalid argument", f"Invalid rank requested : {rank}/{size}")
        raise _add_advice(
            error,
            en=f"A group of {size} has the ranks 0 to {size - 1}, so `rank=` (RANK) and `world_size=` (WORLD_SIZE) do "
            "not match.\nDo: let torchrun set both in each rank's environment.",
            zh=f"{size} 个 rank 的组，编号是 0 到 {size - 1}：`rank=`（RANK）和 `world_size=`（WORLD_SIZE）对不上。\n"
            "怎么办：两者都交给 torchrun，它会在每个 rank 的环境变量里设好。",
        )
    if most is not None and size > most:
        raise wrong(
            en=f"a group of {size} ranks, but only {most} run: on real GPUs they wait in init_process_group, or in the "
            "first collective, for ranks that never come.\nDo: let torchrun set `world_size=` (WORLD_SIZE), or start "
            f"{size} ranks (--nnodes × --nproc-per-node).",
            zh=f"只有 {most} 个 rank 在运行，这个组却要 {size} 个：在真实的 GPU 上，"
            "它们会停在 init_process_group 或第一次集合通信里，等不存在的 rank。\n"
            "怎么办：`world_size=`（WORLD_SIZE）交给 torchrun 来设，"
            "或者启动这么多 rank（--nnodes × --nproc-per-node）。",
        )


def _add_advice(error: Exception, en: str, zh: str) -> Exception:
    """Return PyTorch's ``error`` with an explanation and advice below its message."""
    return type(error)(f"{error}\n{say(en=en, zh=zh)}")
