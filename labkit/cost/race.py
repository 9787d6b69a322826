"""An all-reduce around a ring and one through GPU 0, on more and more GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..base.display import Drawn
from ..base.numbers import instance, whole
from ..plans.ring import ring_all_reduce, star_all_reduce
from .hardware import Hardware, all_reduce_seconds, star_seconds


@dataclass(frozen=True)
class Race(Drawn):
    """For "ring" and "star" one entry per number of GPUs in ``counts``, with gradients of ``nbytes`` bytes each.

    carried   bytes that the busiest link carries in one direction.
    seconds   until every GPU has the sum.
    """

    hardware: str
    nbytes: int
    counts: tuple[int, ...]
    carried: dict[str, tuple[float, ...]]
    seconds: dict[str, tuple[float, ...]]


def race(nbytes: int, hardware: Hardware, counts: Sequence[int] = (1, 2, 4, 8)) -> Race:
    """Predict how a ring and a star sum gradients of ``nbytes`` bytes on each number of GPUs in ``counts``."""
    instance("hardware", hardware, Hardware)
    nbytes, gpus = whole("nbytes", nbytes, 1), tuple(whole("counts", count, 1) for count in counts)
    return Race(
        hardware.name, nbytes, gpus,
        {
            "ring": tuple(float(nbytes * ring_all_reduce(n).carried) for n in gpus),
            "star": tuple(float(nbytes * star_all_reduce(n).carried) for n in gpus),
        },
        {
            "ring": tuple(all_reduce_seconds(nbytes, hardware, n) for n in gpus),
            "star": tuple(star_seconds(nbytes, hardware, n) for n in gpus),
        },
    )  # fmt: skip
