"""Several simulated computers: each has GPUs of its own, which its ranks alone see, as cuda:0, cuda:1, …"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...base.units import parse_bytes
from ...machine.state.gpu import Gpu, TheMachine
from ...machine.state.random import DeviceRandom
from ..rank.visible import Sight, sight


class Nodes:
    """The GPUs of each node, and what each rank's process has of its own on them: random generators.

    The machine in use shows those of one rank at a time: of the one that runs.

    gpus   of each node; the first node's are the machine's own.
    """

    def __init__(
        self, machine: TheMachine, count: int, memory: str | int | Sequence[str | int] | None
    ) -> None:
        self._machine = machine
        self._own = Sight(machine.gpus, machine.random, machine.numbers)
        own = [gpu.capacity for gpu in machine.gpus]
        sizes: Any = (
            own if memory is None else memory if isinstance(memory, (list, tuple)) else [memory] * len(own)
        )
        # Of the nodes, and of ranks that chose.
        self.gpus = [machine.gpus] + [
            tuple(Gpu(k, parse_bytes(size), machine) for k, size in enumerate(sizes)) for _ in range(1, count)
        ]

    def sight(self, node: int, seed: int) -> Sight:
        """What a process on ``node`` sees."""
        made = DeviceRandom(self.gpus[node])
        made.begin(self._machine.backing, seed)
        return Sight(self.gpus[node], made, self._own.numbers)

    def chosen(self) -> Sight:
        """What a process sees by the environment that is in use."""
        made = sight(self._machine)
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
