"""Several simulated computers: each has GPUs of its own, which its ranks alone see, as cuda:0, cuda:1, …"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...base.units import parse_bytes
from ...machine.state.gpu import Gpu, TheMachine
from ...machine.state.random import DeviceRandom


class Nodes:
    """The GPUs of each node, and what each rank's process has of its own on them: random generators.

    The machine in use shows those of one rank at a time: of the one that runs.

    gpus   of each node; the first node's are the machine's own.
    """

    def __init__(self, machine: TheMachine, count: int, memory: str | int | Sequence[str | int]) -> None:
        self._machine = machine
        self._own = machine.gpus, machine.random
        sizes = memory if isinstance(memory, (list, tuple)) else [memory] * len(machine.gpus)
        self.gpus = [machine.gpus] + [
            tuple(Gpu(k, parse_bytes(size), machine) for k, size in enumerate(sizes)) for _ in range(1, count)
        ]

    def random(self, node: int, seed: int) -> DeviceRandom:
        """Generators for a process on ``node``."""
        made = DeviceRandom(self.gpus[node])
        made.begin(self._machine.backing, seed)
        return made

    def show(self, gpus: tuple[Gpu, ...], random: DeviceRandom) -> None:
        """From now on these are the machine's GPUs and its generators."""
        machine = self._machine
        if machine.random is not random:
            machine.gpus, machine.random = gpus, random
            torch.cuda.default_generators = random.generators  # type: ignore[assignment]  # as many as there are

    def restore(self) -> None:
        """Show the machine's own."""
        self.show(*self._own)

    def close(self) -> None:
        """Show the machine's own, and let the others take no more tensors."""
        self.restore()
        for gpus in self.gpus[1:]:
            for gpu in gpus:
                gpu.suspend()
