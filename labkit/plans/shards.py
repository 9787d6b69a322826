"""The contents of each rank's memory in ZeRO's stages (Rajbhandari and others, 2020): integers only, in bytes.

Each number of a model is trained in 16 bits: two bytes of weight, two of gradient, and twelve that Adam keeps (a weight
in 32 bits and two moments). Stage 1 shards what the optimizer keeps, stage 2 the gradients too, stage 3 (FSDP) all.
Activations belong to a rank's own rows, and no stage shards them. Not counted is what is gathered for a moment.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..base.numbers import whole

# Bytes for each parameter, in the order in which stages leave them whole.
KINDS = {"weights": 2, "gradients": 2, "optimizer": 12}


@dataclass(frozen=True)
class Shards:
    """``parameters`` parameters on ``ranks`` ranks in ``stage`` 0 to 3; ``capacity``: bytes that each GPU has."""

    stage: int
    ranks: int
    parameters: int
    activations: int = 0
    capacity: int | None = None

    def __post_init__(self) -> None:
        whole("stage", self.stage, 0, len(KINDS))
        whole("ranks", self.ranks, 1)

    @property
    def whole(self) -> dict[str, int]:
        """The bytes of each kind, all of the model."""
        return {kind: each * self.parameters for kind, each in KINDS.items()}

    def sharded(self, kind: str) -> bool:
        """Whether each rank holds one part of ``kind``, not all."""
        return self.ranks > 1 and kind in list(KINDS)[len(KINDS) - self.stage :]

    def held(self, kind: str) -> int:
        """The bytes of ``kind`` on a rank."""
        return -(-self.whole[kind] // self.ranks) if self.sharded(kind) else self.whole[kind]

    @property
    def total(self) -> int:
        """The bytes on a rank, activations too."""
        return sum(map(self.held, KINDS)) + self.activations

    @property
    def over(self) -> bool:
        """Whether that is more than the GPU has."""
        return self.capacity is not None and self.total > self.capacity

    @property
    def sent(self) -> int:
        """How many times the weights a step sends through a rank, but for a factor (ranks - 1) / ranks."""
        return 0 if self.ranks == 1 else 2 + self.sharded("weights")
