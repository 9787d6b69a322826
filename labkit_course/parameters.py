"""The parameters of lessons, checked without importing torch."""

from __future__ import annotations

from collections.abc import Mapping

from labkit.base.numbers import integer

# The lessons' parameters and limits: the first three for part one, the last for part two, with a GPU for each rank.
LIMITS = {
    "num_gpus": (0, 64), "batch_size": (1, 1_000_000), "data_size": (1, 1_000_000), "num_ranks": (1, 64),
}  # fmt: skip


def checked_parameters(given: Mapping[str, object]) -> dict[str, int]:
    """Return the given parameters that lessons have. Raises TypeError or ValueError for a bad value."""
    return {name: integer(name, given[name], *limits) for name, limits in LIMITS.items() if name in given}
