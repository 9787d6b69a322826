"""Convert the arguments of a group's methods to those of a ``CollectiveCall``.

C++ and Python pass them in different forms (torch/csrc/distributed/c10d/init.cpp).
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from torch import Tensor
from torch.distributed import ReduceOp

from simgpu import gpu_of, machine_in_use
from simgpu.features.reducers import gpu_of_bucket, mark_arrived

from ..calls.call import CollectiveCall


def to_list(tensors: Any) -> list[Any]:
    return [tensors] if isinstance(tensors, Tensor) else list(tensors)


def flatten_tensors(tensors: Any) -> list[Any]:
    """Return one tensor for each rank. C++ passes a list in a list; a short form of the methods passes one list."""
    return to_list(tensors[0] if len(tensors) == 1 else tensors)


def make_options(kind: Any, given: Any, *more: Any, **named: Any) -> Any:
    """Return the options object of a method, made of a root, a reduction or a timeout if those are given instead."""
    if given is not None and not isinstance(given, (int, timedelta, ReduceOp, ReduceOp.RedOpType)):
        return given
    options = kind()
    for value in (given, *more, *named.values()):
        if isinstance(value, timedelta):
            options.timeout = value
        elif isinstance(value, int):
            options.rootRank = value
        elif value is not None:
            options.reduceOp = value if isinstance(value, ReduceOp) else ReduceOp(value)
    return options


def facts_of_options(opts: Any) -> dict[str, Any]:
    """Return the facts of a call that its options hold."""
    facts: dict[str, Any] = {"async_op": bool(getattr(opts, "asyncOp", False))}
    timeout = getattr(opts, "timeout", None)
    # C++ passes -1 ms for none (c10d/Backend.hpp, kUnsetTimeout).
    if timeout is not None and timeout > timedelta():
        facts["timeout"] = timeout
    if hasattr(opts, "rootRank"):
        facts["root"] = opts.rootRank
    if (op := getattr(opts, "reduceOp", None)) is not None:
        facts["op"] = name = _NAMES[int(getattr(op, "op", op))]
        facts["factor"] = op.__getstate__()[1] if name == "PREMUL_SUM" else None
    return facts


_NAMES = {int(getattr(ReduceOp.RedOpType, name)): name for name in ReduceOp.RedOpType.__members__}


def set_device(group: Any, call: CollectiveCall, opts: Any) -> None:
    """Set the device of the call's tensors, and the GPU's number on the node."""
    tensors = call.inputs if call.outputs is call.inputs else call.inputs + call.outputs
    call.device = _find_device(group, call, tensors, opts)
    machine, number = machine_in_use(), call.device.partition("cuda:")[2]
    if machine is not None and number and int(number) < len(machine.numbers):
        call.bus = machine.numbers[int(number)]


def _find_device(group: Any, call: CollectiveCall, tensors: list[Tensor], opts: Any) -> str:
    """Return the device of the tensors. Tensors that C++ made, unseen by Python, are on the group's ``home`` GPU."""
    found = "cpu" if "cpu" in group.backends else ""
    near = next(filter(None, map(gpu_of, tensors)), None) if call.from_cpp else None
    for tensor in tensors:
        gpu = gpu_of(tensor)
        if gpu is None and call.from_cpp and tensor.device.type == "cpu":
            machine = machine_in_use()
            if machine is not None and machine.gpus:
                # If the group takes CPU and GPU tensors, a tensor of C++ is where the others are, or a bucket.
                there = near or group.home or machine.gpu(None)
                both = near is None and "cpu" in group.backends
                gpu = gpu_of_bucket(tensor, there) if both else there
                mark_arrived(tensor, gpu)
        if gpu is not None:
            found = str(gpu.device)
            group.first_device = group.first_device or found
        elif not found:
            found = str(tensor.device)
    return found or _barrier_device(group, opts)


def _barrier_device(group: Any, opts: Any) -> str:
    """Return the GPU that NCCL uses for a barrier (torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp, barrier)."""
    chosen = getattr(opts, "device_ids", None)
    if chosen:
        return f"cuda:{chosen[0]}"
    bound = group.bound_device_id
    if bound is not None:
        return str(bound)
    machine = machine_in_use()
    gpus = len(machine.gpus) if machine is not None else 0
    return group.first_device or f"cuda:{group.ranks[group.rank()] % max(1, gpus)}"
