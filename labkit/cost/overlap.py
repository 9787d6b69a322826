"""A step of DDP in time: gradients leave in buckets while backward still computes the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .hardware import Hardware, all_reduce_seconds
from .step import Workload, ddp_computing


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
    sizes = [sum(bucket) for bucket in buckets]
    lasting = [all_reduce_seconds(size, hardware, gpus) for size in sizes]
    forward, backward = ddp_computing(work, hardware, rows, sum(lasting[:-1]) > 0)
    made, free, sums = 0, 0.0, []
    for size, seconds in zip(sizes, lasting, strict=True):
        made += size
        start = max(free, forward + backward * made / sum(sizes))
        free = start + seconds
        sums.append((size, start, free))
    return Overlap(forward, backward, tuple(sums))
