"""The parameters of lessons, checked without importing torch."""

from __future__ import annotations

from collections.abc import Mapping

from labkit.base.numbers import integer, must

# The lessons' parameters and limits: the first three for part one, the last for part two, with a GPU for each rank.
LIMITS = {
    "num_gpus": (0, 64), "batch_size": (1, 1_000_000), "data_size": (1, 1_000_000), "num_ranks": (1, 64),
}  # fmt: skip


def checked_parameters(given: Mapping[str, object], *, others: bool = False) -> dict[str, int]:
    """Return the given parameters that lessons have. Raises TypeError or ValueError for a bad value.

    others   whether other parameters may be given; without it they raise TypeError.
    """
    if (unknown := given.keys() - LIMITS.keys()) and not others:
        known = (", ".join(LIMITS), "、".join(LIMITS))
        raise TypeError(must("numbers", min(unknown), en=f"one of {known[0]}", zh=f"是 {known[1]} 之一"))
    return {name: integer(name, given[name], *limits) for name, limits in LIMITS.items() if name in given}
