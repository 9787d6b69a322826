"""Meshes of ranks: coordinates and groups along each dimension, from integers only."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

# Llama 3.1 8B in 16 bits, rows of 8,192 tokens: bytes of an activation between two layers, layers, parameters.
_ACTIVATION, _LAYERS, _PARAMETERS = 2 * 8192 * 4096, 32, 8_030_261_248


@dataclass(frozen=True)
class Mesh:
    """A mesh with the ``names`` and ``sizes`` of its dimensions, outermost first; the last has stride 1.

    node   the number of ranks on a computer.
    """

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    node: int = 8

    def stride(self, name: str) -> int:
        """Return the difference between neighbouring ranks along dimension ``name``."""
        return prod(self.sizes[self.names.index(name) + 1 :])

    def coordinate(self, rank: int) -> tuple[int, ...]:
        """Return the position of ``rank`` along each dimension."""
        places = zip(self.names, self.sizes, strict=True)
        return tuple(rank // self.stride(name) % size for name, size in places)

    def groups(self, name: str) -> list[range]:
        """Return the groups along dimension ``name``; members differ in this dimension only."""
        stride, size = self.stride(name), self.sizes[self.names.index(name)]
        firsts = (rank for rank in range(prod(self.sizes)) if rank // stride % size == 0)
        return [range(first, first + size * stride, stride) for first in firsts]

    def crossing(self, name: str) -> int:
        """Return the number of groups along ``name`` with ranks on several computers."""
        return sum(group[0] // self.node != group[-1] // self.node for group in self.groups(name))


def bytes_sent(dp: int, pp: int, tp: int) -> dict[str, float]:
    """Return the bytes that a rank sends along each dimension: for tp and pp in a micro-batch, for dp in a step.

    tp   four all-reduces of an activation in each layer of the stage.
    pp   an activation to the next stage; a middle stage sends a gradient back as well.
    dp   one all-reduce of the stage's gradients.
    """
    around = {size: 2 * (size - 1) / size for size in (dp, tp)}
    return {
        "tp": 4 * _LAYERS / pp * _ACTIVATION * around[tp],
        "pp": float(_ACTIVATION * min(pp - 1, 2)),
        "dp": 2 * _PARAMETERS / (pp * tp) * around[dp],
    }
