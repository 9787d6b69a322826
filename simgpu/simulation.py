"""simulate() and use_gpus(): a machine from what a user asks for, or the computer's own GPUs."""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch

from labkit.base.language import say, wrong
from labkit.base.numbers import MOST_GPUS, integer, plural
from labkit.base.patches import Patch, Patches
from labkit.base.torch_releases import warn_if_untried
from labkit.plans.footprint import Occupancy

from .children import environment as children
from .machine import Machine, refuse_beside_a_block
from .state.current_machine import machine_in_use
from .tracebacks import hide_labkit_frames


def simulate(
    gpus: int = 8,
    *,
    memory: str | int | Sequence[str | int] | None = None,
    backing: str = "cpu",
    order: Sequence[int] | str | None = None,
    gpu_model: str | None = None,
) -> Machine:
    """From now on, torch sees ``gpus`` simulated GPUs.

    Works as a plain call (``close()`` ends it, or the next call) and as a context manager.

    gpus        how many, 1 to 1024.
    memory      of each GPU: bytes, text like "16 GiB", or a list of these, one for each GPU. Default: what the
                model has, 16 GiB without one.
    backing     where values are really kept: "cpu", and nowhere else.
    order       of the replicas of a data-parallel call: None runs them in device order, so that what they
                print is the same every time; "threads" lets them race as on real GPUs; a list such as
                [2, 0, 1] runs them in that order.
    gpu_model   whose name, compute capability, processors and memory torch.cuda tells: "V100", "A100-40", "A100-80",
                "H100", "H200", "T4", "L4" or "RTX 4090". Default: a GPU of labkit's own.

    Raises TypeError or ValueError, naming the argument, and RuntimeError within another thread's block, before
    anything is changed.
    """
    gpus = integer("gpus", gpus, 1, MOST_GPUS)
    if isinstance(memory, (list, tuple)) and len(memory) != gpus:
        raise wrong(
            en=f"memory must have one entry for each of the {gpus} GPUs, got {len(memory)}: {memory!r}",
            zh=f"memory 必须给 {gpus} 块 GPU 各写一项，现在有 {len(memory)} 项：{memory!r}",
        )
    order = children.checked_order(order, gpus)
    _check_backing(backing)
    warn_if_untried(torch.__version__)
    return _take_over(Machine(gpus, memory, order, gpu_model=gpu_model))


def inherit() -> Machine | None:
    """Open the machine that the environment tells of, in a child process; None if it tells of none.

    A plain call, as ``simulate()``, but CUDA_VISIBLE_DEVICES counts here, and errors are shown without our frames.
    """
    told = os.environ.get(children.MACHINE)
    if told is None:
        return None
    found = children.parse_description(told)
    hide_labkit_frames()
    warn_if_untried(torch.__version__)
    return _take_over(
        Machine(**found.options(os.environ), numbers=found.visible_gpus(os.environ), description=told)
    )


def use_gpus(gpus: int) -> Machine | RealGpus:
    """``gpus`` GPUs (≥ 0): real ones if the computer has enough, else simulated ones.

    Simulated ones keep their values on the CPU, whatever real GPU there is.
    """
    gpus = integer("gpus", gpus, 0, MOST_GPUS)
    refuse_beside_a_block()
    machine = machine_in_use()
    if machine is not None:
        machine.close()
    release()
    have = torch.cuda.device_count()
    if have >= gpus and have > 0 and gpus > 0:
        return RealGpus(gpus)
    return _take_over(Machine(gpus))


def _take_over(machine: Machine) -> Machine:
    release()
    return machine.open()


def _check_backing(backing: object) -> None:
    """Refuse the place of former versions for values: a real GPU, on which they were never tried."""
    if str(backing) != "cpu":
        raise wrong(
            en=f"backing must be 'cpu', got {backing!r}: the values of simulated GPUs are kept on the CPU",
            zh=f"backing 只能是 'cpu'，现在是 {backing!r}：模拟 GPU 的数值都存放在 CPU 上",
        )


_open: RealGpus | None = None


class RealGpus:
    """The first ``count`` of the computer's GPUs, from now until :meth:`close` (or the next machine)."""

    def __init__(self, count: int) -> None:
        global _open
        release()
        self.gpus = tuple(range(count))
        self.closed = False
        # DataParallel and the programs of the lessons ask this for "all GPUs".
        self._patches = Patches(lambda: [Patch(torch.cuda, "device_count", lambda: count)])
        self._patches.put_in()
        _open = self

    def memory(self, gpu: int) -> int:
        """Bytes allocated on this GPU."""
        return torch.cuda.memory_allocated(gpu)

    def close(self) -> None:
        """Let torch see all GPUs again."""
        global _open
        if _open is self:
            _open = None
            self._patches.take_out()
        self.closed = True

    def __enter__(self) -> RealGpus:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _repr_svg_(self) -> str | None:
        if self.closed:
            return None
        there = tuple(torch.cuda.get_device_properties(k).total_memory for k in self.gpus)
        return Occupancy(tuple(map(self.memory, self.gpus)), there, simulated=False)._repr_svg_()

    def __repr__(self) -> str:
        count = len(self.gpus)
        return "\n".join(
            [say(en=plural(count, "real GPU"), zh=f"{count} 块真 GPU")]
            + [f"  cuda:{k}  {torch.cuda.get_device_name(k)}" for k in self.gpus]
        )


def release() -> None:
    """End the limit that is open, if one is."""
    if _open is not None:
        _open.close()
