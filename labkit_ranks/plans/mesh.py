"""A mesh of ranks: each has a coordinate along every dimension, and is in one group along each; integers alone."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod


@dataclass(frozen=True)
class Mesh:
    """``names`` and ``sizes`` of its dimensions, the outermost first; along the last, neighbours differ by 1.

    node   how many of the ranks a computer has.
    """

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    node: int = 8

    def stride(self, name: str) -> int:
        """How far apart the ranks of neighbours along dimension ``name`` are."""
        return prod(self.sizes[self.names.index(name) + 1 :])

    def coordinate(self, rank: int) -> tuple[int, ...]:
        """Where ``rank`` stands along each dimension."""
        places = zip(self.names, self.sizes, strict=True)
        return tuple(rank // self.stride(name) % size for name, size in places)

    def groups(self, name: str) -> list[range]:
        """The groups along dimension ``name``: the members of one differ along it alone."""
        stride, size = self.stride(name), self.sizes[self.names.index(name)]
        firsts = (rank for rank in range(prod(self.sizes)) if rank // stride % size == 0)
        return [range(first, first + size * stride, stride) for first in firsts]

    def crossing(self, name: str) -> int:
        """How many groups along ``name`` have ranks on several computers."""
        return sum(group[0] // self.node != group[-1] // self.node for group in self.groups(name))
