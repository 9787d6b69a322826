"""The memory of each rank in ZeRO's stages (Rajbhandari and others, 2020): integers only, in bytes.

A parameter in 16-bit training takes two bytes of weight, two of gradient, and twelve of Adam's state (a 32-bit weight
and two moments). Stage 1 shards the optimizer's state, stage 2 also gradients, stage 3 (FSDP) also weights. No stage
shards activations. Temporary gathered weights are not counted.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..base.numbers import integer

# Bytes for each parameter. Stage n shards the last n kinds.
KINDS = {"weights": 2, "gradients": 2, "optimizer": 12}


@dataclass(frozen=True)
class Shards:
    """A model of ``parameters`` parameters on ``ranks`` ranks in ``stage`` 0 to 3; ``capacity``: bytes of each GPU."""

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
        """The model's bytes of each kind."""
        return {kind: each * self.parameters for kind, each in KINDS.items()}

    def is_sharded(self, kind: str) -> bool:
        """Whether each rank holds only a part of ``kind``."""
        return self.ranks > 1 and kind in list(KINDS)[len(KINDS) - self.stage :]

    def rank_bytes(self, kind: str) -> int:
        """Return the bytes of ``kind`` on a rank."""
        return -(-self.model_bytes[kind] // self.ranks) if self.is_sharded(kind) else self.model_bytes[kind]

    @property
    def total(self) -> int:
        """The bytes on a rank, with activations."""
        return sum(map(self.rank_bytes, KINDS)) + self.activations

    @property
    def exceeds_capacity(self) -> bool:
        """Whether a rank needs more than its GPU has."""
        return self.capacity is not None and self.total > self.capacity
