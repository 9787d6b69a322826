"""The GPUs that a rank sees: those of its node, as cuda:0, cuda:1, …

If it lists some in CUDA_VISIBLE_DEVICES before it uses CUDA, it sees these, as CUDA reads it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from labkit.base.units import parse_bytes
from simgpu import DeviceRandom, Gpu, TheMachine
from simgpu.children import environment as children

_NAME: Any = os.environ.encodekey(children.VISIBLE)


class VisibleGpus(NamedTuple):
    """The GPUs that a process sees, its random generators on them, and which of the computer's GPUs they are.

    Of two processes that see one GPU, each has objects of its own for it: neither finds it filled by the other.
    """

    gpus: tuple[Gpu, ...]
    random: DeviceRandom
    numbers: tuple[int, ...]

    def show(self, machine: TheMachine) -> None:
        """From now on these are the machine's GPUs."""
        if machine.random is not self.random:
            machine.gpus, machine.random, machine.numbers = self
            torch.cuda.default_generators = self.random.generators  # type: ignore[assignment]  # as many as there are


def gpus_of_environment(machine: TheMachine) -> VisibleGpus:
    """Gives the GPUs that the machine shows to a process with the environment that is in use."""
    found = children.parse_description(machine.description)
    sizes: Any = found.options(os.environ)
    memory = sizes["memory"] if isinstance(sizes["memory"], list) else [sizes["memory"]] * sizes["gpus"]
    gpus = tuple(Gpu(k, parse_bytes(size), machine) for k, size in enumerate(memory))
    random = DeviceRandom(gpus)
    before = machine.random.generators
    random.begin(before[0].initial_seed() if before else None)
    return VisibleGpus(gpus, random, found.visible_gpus(os.environ))


class NodeGpus:
    """The GPUs of each node, and what each rank's process has of its own on them: random generators.

    The machine in use shows those of one rank at a time: of the one that runs.

    gpus   of each node; the first node's are the machine's own.
    """

    def __init__(
        self, machine: TheMachine, count: int, memory: str | int | Sequence[str | int] | None
    ) -> None:
        self._machine = machine
        self._own = VisibleGpus(machine.gpus, machine.random, machine.numbers)
        own = [gpu.capacity for gpu in machine.gpus]
        each = memory if isinstance(memory, (list, tuple)) else [memory] * len(own)
        sizes: Any = own if memory is None else each
        # Of the nodes, and of ranks that chose.
        self.gpus = [machine.gpus] + [
            tuple(Gpu(k, parse_bytes(size), machine) for k, size in enumerate(sizes)) for _ in range(1, count)
        ]

    def gpus_of_node(self, node: int, seed: int) -> VisibleGpus:
        """The sight of a process on ``node``."""
        made = DeviceRandom(self.gpus[node])
        made.begin(seed)
        return VisibleGpus(self.gpus[node], made, self._own.numbers)

    def gpus_by_choice(self) -> VisibleGpus:
        """The sight of a process by the environment that is in use."""
        made = gpus_of_environment(self._machine)
        self.gpus.append(made.gpus)
        return made

    def restore(self) -> None:
        """Show the machine's own."""
        self._own.show(self._machine)

    def close(self) -> None:
        """Show the machine's own, and let the others take no more tensors."""
        self.restore()
        for gpus in self.gpus[1:]:
            for gpu in gpus:
                gpu.suspend()


class WatchedEnvironment(dict[Any, Any]):
    """The variables of a process, as ``os.environ`` keeps them; ``chosen()`` is called when it has said which GPUs."""

    on_change: Callable[[], object] | None = None

    def __setitem__(self, name: Any, value: Any) -> None:
        super().__setitem__(name, value)
        if name == _NAME and self.on_change is not None:
            self.on_change()

    def __delitem__(self, name: Any) -> None:
        super().__delitem__(name)
        if name == _NAME and self.on_change is not None:
            self.on_change()

    def __reduce__(self) -> Any:
        return dict, (dict(self.items()),)  # a copy of the environment is nobody's
