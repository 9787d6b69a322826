"""The GPUs that a rank sees: all of its node, as cuda:0, cuda:1, …

If the rank sets CUDA_VISIBLE_DEVICES before it uses CUDA, the rank sees the GPUs in that list, as with CUDA.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from labkit.base.units import parse_bytes
from simgpu import DeviceRandom, Gpu, TheMachine
from simgpu.children import environment as children

# As the dict of os.environ holds the name: bytes on Linux and macOS.
_VISIBLE_KEY: Any = os.environ.encodekey(children.VISIBLE)


class VisibleGpus(NamedTuple):
    """The GPUs of a process, with random generators and numbers on the node.

    Two processes that see the same GPU have separate objects for it, and neither sees the memory of the other.
    """

    gpus: tuple[Gpu, ...]
    random: DeviceRandom
    numbers: tuple[int, ...]

    def show(self, machine: TheMachine) -> None:
        """Put these GPUs into the machine."""
        if machine.random is not self.random:  # otherwise these are in it already
            machine.gpus, machine.random, machine.numbers = self
            torch.cuda.default_generators = self.random.generators  # type: ignore[assignment]  # one for each GPU


def gpus_of_environment(machine: TheMachine) -> VisibleGpus:
    """Return the GPUs that the machine shows to a process with the current environment."""
    description = children.parse_description(machine.description)
    options: Any = description.options(os.environ)
    gpus = _make_gpus(machine, options["memory"], options["gpus"])
    random = DeviceRandom(gpus)
    before = machine.random.generators
    random.begin(before[0].initial_seed() if before else None)
    return VisibleGpus(gpus, random, description.visible_gpus(os.environ))


def _make_gpus(machine: TheMachine, memory: Any, count: int) -> tuple[Gpu, ...]:
    """Return ``count`` GPUs with the same memory, or a GPU for each entry of a list."""
    sizes = memory if isinstance(memory, (list, tuple)) else [memory] * count
    return tuple(Gpu(k, parse_bytes(size), machine) for k, size in enumerate(sizes))


class NodeGpus:
    """The GPUs of each node, and the random generators of each rank on them.

    The machine in use shows the GPUs of one rank at a time: the one that runs.

    gpus   of each node (the first node's are the machine's own), then those of ranks that set CUDA_VISIBLE_DEVICES.
    """

    def __init__(
        self, machine: TheMachine, count: int, memory: str | int | Sequence[str | int] | None
    ) -> None:
        self._machine = machine
        self._own = VisibleGpus(machine.gpus, machine.random, machine.numbers)
        sizes: Any = [gpu.capacity for gpu in machine.gpus] if memory is None else memory
        self.gpus = [machine.gpus]
        self.gpus += [_make_gpus(machine, sizes, len(machine.gpus)) for _ in range(1, count)]

    def gpus_of_node(self, node: int, seed: int) -> VisibleGpus:
        """Return the GPUs of a process on ``node``."""
        made = DeviceRandom(self.gpus[node])
        made.begin(seed)
        return VisibleGpus(self.gpus[node], made, self._own.numbers)

    def gpus_by_choice(self) -> VisibleGpus:
        """Return the GPUs of a process with the current environment."""
        made = gpus_of_environment(self._machine)
        self.gpus.append(made.gpus)
        return made

    def restore(self) -> None:
        """Show the machine's own GPUs."""
        self._own.show(self._machine)

    def close(self) -> None:
        """Show the machine's own GPUs, and close the others."""
        self.restore()
        for gpus in self.gpus[1:]:
            for gpu in gpus:
                gpu.suspend()


class WatchedEnvironment(dict[Any, Any]):
    """The dict of ``os.environ``. It calls ``on_change()`` when CUDA_VISIBLE_DEVICES changes."""

    on_change: Callable[[], object] | None = None

    def __setitem__(self, name: Any, value: Any) -> None:
        super().__setitem__(name, value)
        if name == _VISIBLE_KEY and self.on_change is not None:
            self.on_change()

    def __delitem__(self, name: Any) -> None:
        super().__delitem__(name)
        if name == _VISIBLE_KEY and self.on_change is not None:
            self.on_change()

    def __reduce__(self) -> Any:
        return dict, (dict(self.items()),)  # copies are plain dicts
