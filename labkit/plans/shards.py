"""The contents of each rank's memory in ZeRO's stages (Rajbhandari and others, 2020): integers only, in bytes.

Each number of a model is trained in 16 bits: two bytes of weight, two of gradient, and twelve that Adam keeps (a weight
in 32 bits and two moments). Stage 1 shards what the optimizer keeps, stage 2 the gradients too, stage 3 (FSDP) all.
Activations belong to a rank's own rows, and no stage shards them. Not counted is what is gathered for a moment.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..base.numbers import integer

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
        integer("stage", self.stage, 0, len(KINDS))
        integer("ranks", self.ranks, 1)

    @property
    def model_bytes(self) -> dict[str, int]:
        """The bytes of each kind, all of the model."""
        return {kind: each * self.parameters for kind, each in KINDS.items()}

    def is_sharded(self, kind: str) -> bool:
        """Whether each rank holds one part of ``kind``, not all."""
        return self.ranks > 1 and kind in list(KINDS)[len(KINDS) - self.stage :]

    def rank_bytes(self, kind: str) -> int:
        """The bytes of ``kind`` on a rank."""
        return -(-self.model_bytes[kind] // self.ranks) if self.is_sharded(kind) else self.model_bytes[kind]

    @property
    def total(self) -> int:
        """The bytes on a rank, activations too."""
        return sum(map(self.rank_bytes, KINDS)) + self.activations

    @property
    def exceeds_capacity(self) -> bool:
        """Whether that is more than the GPU has."""
        return self.capacity is not None and self.total > self.capacity

    @property
    def weights_sent(self) -> int:
        """How many times the weights a step sends through a rank, but for a factor (ranks - 1) / ranks."""
        return 0 if self.ranks == 1 else 2 + self.is_sharded("weights")
