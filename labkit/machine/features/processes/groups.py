"""Process groups of ``torch.distributed`` where a program opened its machine itself: there is no NCCL."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from ....base.language import say
from ....base.patches import Patch
from ... import hooks
from ...state.gpu import TheMachine
from ...state.in_use import replaces


@hooks.patches.add
def patches(machine: TheMachine) -> Iterator[Patch]:
    """The options with which a group waits."""
    if torch.distributed.is_available():
        yield Patch(torch.distributed.distributed_c10d, "BarrierOptions", _barrier_options(machine))


def _make(
    _: TheMachine, real: Any, size: int, rank: int, ranks: Any, backend: Any, *args: Any, **kwargs: Any
) -> Any:
    """The function that makes a process group; it names what there is instead of NCCL."""
    config: Any = torch.distributed.distributed_c10d.BackendConfig
    if "nccl" in config(backend).get_device_backend_map().values():
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
    return real(size, rank, ranks, backend, *args, **kwargs)


if torch.distributed.is_available():
    replaces(torch.distributed.distributed_c10d, "_new_process_group_helper")(_make)


def _barrier_options(machine: TheMachine) -> type:
    """The class of a barrier's options. C++ only looks at its device: the barrier's tensor is on the host.

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
