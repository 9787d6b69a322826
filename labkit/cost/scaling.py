"""Predict a step on more and more GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..base.display import Drawn
from ..base.language import say
from ..base.numbers import instance, integer, must
from ..base.units import duration
from .hardware import Hardware
from .step import Workload, data_parallel_step, ddp_step, perfect_step


@dataclass(frozen=True)
class Scaling(Drawn):
    """Seconds of a step by method and number of GPUs, with ``rows`` rows on each GPU.

    seconds   for "perfect", "ddp" and "data_parallel" one entry per count; None where the method cannot run.
    """

    hardware: str
    rows: int
    counts: tuple[int, ...]
    seconds: dict[str, tuple[float | None, ...]]

    def efficiency(self, method: str) -> tuple[float | None, ...]:
        """The share of perfect scaling's throughput: perfect seconds over the method's."""
        pairs = zip(self.seconds["perfect"], self.seconds[method], strict=True)
        return tuple(None if s is None or best is None else best / s for best, s in pairs)

    def __str__(self) -> str:
        shown = list(zip(self.counts, self.seconds["ddp"], strict=True))
        shown = shown if len(shown) <= 6 else [*shown[:5], shown[-1]]
        found = ", ".join(f"{n}: {duration(seconds or 0)}" for n, seconds in shown)
        return say(
            en=f"{self.rows} rows per GPU on {self.hardware}; DDP on GPUs {found}",
            zh=f"{self.hardware}，每块 GPU {self.rows} 行；DDP，GPU 数与时间：{found}",
        )

    __repr__ = __str__


def doublings(times: int) -> tuple[int, ...]:
    """Return 1, 2, 4, … GPUs, doubled ``times`` times."""
    return tuple(2**at for at in range(times + 1))


def predict_scaling(
    work: Workload, hardware: Hardware, counts: Sequence[int] = (1, 2, 4, 8), *, rows: int = 32
) -> Scaling:
    """Predict steps with ``rows`` rows on each of 1, 2, 4, … GPUs.

    Raises TypeError for other things than a Workload, a Hardware and whole numbers, ValueError if a count or
    ``rows`` is below 1.
    """
    instance("work", work, Workload)
    instance("hardware", hardware, Hardware)
    if not isinstance(counts, Sequence) or not counts:
        raise ValueError(must("counts", counts, en="at least one number of GPUs", zh="至少有一个 GPU 数"))
    gpus, rows = tuple(integer("counts", count, 1) for count in counts), integer("rows", rows, 1)
    found: dict[str, tuple[float | None, ...]] = {
        "perfect": tuple(perfect_step(work, rows * n, n).seconds for n in gpus),
        "ddp": tuple(ddp_step(work, hardware, rows * n, n).seconds for n in gpus),
        "data_parallel": tuple(
            data_parallel_step(work, hardware, rows * n, n).seconds if n <= hardware.machine_size else None
            for n in gpus
        ),
    }
    return Scaling(hardware.name, rows, gpus, found)
