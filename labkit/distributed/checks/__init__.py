"""What NCCL, gloo and c10d refuse in one rank's own arguments, in their own words.

The words are PyTorch 2.13's: torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp, ProcessGroupGloo.cpp, Utils.hpp,
NCCLUtils.cpp, and those of NCCL itself (src/misc/argcheck.cc). What c10d's Python refuses (a group without the
caller, no group yet, lists that are no lists) it still refuses itself, before it comes here.

Where NCCL would read or write past the end of a tensor, or copy what nobody asked for, without a word, it is said
here in both languages (:func:`.arguments.silent`).
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch.distributed import DistBackendError

from ..call import Call
from . import gloo, nccl


class Checked(Protocol):
    """What is asked of a group."""

    bound_device_id: torch.device | None
    _destroyed: bool


def check(call: Call, group: Checked) -> None:
    """Raise what PyTorch raises for a call whose arguments its backend does not take.

    RuntimeError, ValueError, TypeError or torch.distributed.DistBackendError, as C++ does.
    """
    backend = call.backend
    if not backend:
        # ProcessGroup.hpp, getBackend
        raise RuntimeError(f"No backend type associated with device type {call.device.partition(':')[0]}")
    if group._destroyed:
        # NCCLUtils.cpp, NCCLComm::getNcclComm
        raise DistBackendError(f"NCCL communicator was aborted on rank {call.at}. ")
    checks = nccl.CHECKS if backend == "nccl" else gloo.CHECKS
    if backend == "nccl" and call.kind != "barrier":
        bound = group.bound_device_id
        if bound is not None and str(bound) != call.device:
            # ProcessGroupNCCL.cpp, initNCCLComm
            raise DistBackendError(
                "Attempt to perform collective on tensor not on device passed to init_process_group"
            )
    found = checks.get(call.kind)
    if found is not None:
        found(call)
