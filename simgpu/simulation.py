"""Open a simulated machine, or the computer's own GPUs: simulate() and use_gpus()."""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch

from labkit.base.language import say
from labkit.base.numbers import MOST_GPUS, integer, must, plural
from labkit.base.patches import Patch, Patches
from labkit.base.torch_releases import warn_if_untried
from labkit.plans.footprint import Occupancy

from .children import environment as children
from .machine import Machine
from .state.current_machine import machine_in_use
from .tracebacks import hide_labkit_frames


def simulate(
    gpus: int = 8,
    *,
    memory: str | int | Sequence[str | int] | None = None,
    order: Sequence[int] | str | None = None,
    gpu_model: str | None = None,
) -> Machine:
    """Let torch see ``gpus`` simulated GPUs.

    Usable as a plain call (until ``close()`` or the next call) and as a context manager.

    gpus        how many, 0 to 1024.
    memory      of each GPU: bytes, text like "16 GiB", or a list with an entry for each GPU. Default: that of the
                model, 16 GiB without one.
    order       of the replicas of a data-parallel call: None runs them in device order, so that their output
                is the same every time; "threads" lets them race as on real GPUs; a list such as
                [2, 0, 1] runs them in that order.
    gpu_model   gives torch.cuda's name, compute capability, processors and memory: "V100", "A100-40", "A100-80",
                "H100", "H200", "T4", "L4" or "RTX 4090". Default: an invented GPU.

    Raises TypeError or ValueError, naming the argument, before changing anything. All threads see the same machine.
    """
    gpus = integer("gpus", gpus, 0, MOST_GPUS)
    if isinstance(memory, (list, tuple)) and len(memory) != gpus:
        en, zh = f"a list with one entry for each of the {gpus} GPUs", f"是列表，给 {gpus} 块 GPU 各写一项"
        raise ValueError(must("memory", memory, en=en, zh=zh))
    order = children.checked_order(order, gpus)
    warn_if_untried(torch.__version__)
    return _take_over(Machine(gpus, memory, order, gpu_model=gpu_model))


def inherit() -> Machine | None:
    """Open the machine described by the environment of this child process; return None without a description.

    Unlike ``simulate()``, follow CUDA_VISIBLE_DEVICES and show errors without labkit's frames.
    """
    text = os.environ.get(children.MACHINE)
    if text is None:
        return None
    found = children.parse_description(text)
    hide_labkit_frames()
    warn_if_untried(torch.__version__)
    return _take_over(
        Machine(**found.options(os.environ), numbers=found.visible_gpus(os.environ), description=text)
    )


def use_gpus(gpus: int) -> Machine | RealGpus:
    """Use ``gpus`` (≥ 0) real GPUs if the computer has enough, else simulated ones, whose values are on the CPU."""
    gpus = integer("gpus", gpus, 0, MOST_GPUS)
    machine = machine_in_use()
    if machine is not None:
        machine.close()
    release()
    have = torch.cuda.device_count()
    if have >= gpus and have > 0 and gpus > 0:
        return RealGpus(gpus)
    return _take_over(Machine(gpus))


def _take_over(machine: Machine) -> Machine:
    if _open is not None:
        machine.at_block_end = _open.reopen
    release()
    return machine.open()


_open: RealGpus | None = None


class RealGpus:
    """The computer's first ``count`` GPUs, in use until :meth:`close` or the next machine.

    The end of a machine's ``with`` block restores them.
    """

    def __init__(self, count: int) -> None:
        self.gpus = tuple(range(count))
        # DataParallel and the lessons take "all GPUs" from device_count.
        self._patches = Patches(lambda: [Patch(torch.cuda, "device_count", lambda: count)])
        self.reopen()

    def reopen(self) -> None:
        """Let torch see these GPUs only, again after :meth:`close`."""
        global _open
        release()
        self.closed = False
        self._patches.put_in()
        _open = self

    def memory(self, gpu: int) -> int:
        """Return the bytes allocated on GPU number ``gpu``."""
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
        capacities = tuple(torch.cuda.get_device_properties(k).total_memory for k in self.gpus)
        return Occupancy(tuple(map(self.memory, self.gpus)), capacities, simulated=False)._repr_svg_()

    def __repr__(self) -> str:
        count = len(self.gpus)
        return "\n".join(
            [say(en=plural(count, "real GPU"), zh=f"{count} 块真 GPU")]
            + [f"  cuda:{k}  {torch.cuda.get_device_name(k)}" for k in self.gpus]
        )


def release() -> None:
    """Close the open :class:`RealGpus`, if there is one."""
    if _open is not None:
        _open.close()
