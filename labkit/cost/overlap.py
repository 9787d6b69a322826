"""A step of DDP in time: gradients leave in buckets while backward still computes the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .hardware import Hardware
from .step import Workload, all_reduce_seconds, computing_seconds


@dataclass(frozen=True)
class Overlap:
    """A step: seconds of forward and backward, and of each bucket its bytes and when its all-reduce began and ended."""

    forward: float
    backward: float
    sums: tuple[tuple[int, float, float], ...]

    @property
    def computed(self) -> float:
        """When backward is over."""
        return self.forward + self.backward

    @property
    def seconds(self) -> float:
        """The whole step."""
        return max(self.computed, self.sums[-1][2])


def overlap(
    work: Workload, hardware: Hardware, rows: int, gpus: int, buckets: Sequence[Sequence[int]]
) -> Overlap:
    """Predict a step with ``rows`` rows on each of ``gpus`` GPUs, whose gradients leave in ``buckets`` of bytes.

    Backward's time is shared out by bytes: a gradient is there when as large a share of it is over.
    """
    extra = 1 + hardware.ddp_overhead
    forward, backward = (seconds * extra for seconds in computing_seconds(work, rows, 1))
    total, made, free = sum(map(sum, buckets)), 0, 0.0
    sums = []
    for bucket in buckets:
        made += sum(bucket)
        start = max(free, forward + backward * made / total)
        free = start + all_reduce_seconds(sum(bucket), hardware, gpus)
        sums.append((sum(bucket), start, free))
    return Overlap(forward, backward, tuple(sums))
