"""The time of one prediction of costs, and of a sweep.

python benchmarks/cost.py
"""

from __future__ import annotations

import statistics
from time import perf_counter

from pairs import report

from labkit.cost import PROFILES, data_parallel_step, ddp_step
from labkit.cost.published import BERT


def median_seconds(program, times: int = 25) -> float:
    """The median time of ``program`` over ``times`` runs."""
    found = []
    for _ in range(times):
        started = perf_counter()
        program()
        found.append(perf_counter() - started)
    return statistics.median(found)


def main():
    hardware = PROFILES["v100-nvlink"]

    def sweep():
        for rows in range(1, 501):
            data_parallel_step(BERT, hardware, rows, 8)
            ddp_step(BERT, hardware, rows, 4096)

    one = median_seconds(lambda: data_parallel_step(BERT, hardware, 256, 8), 201)
    report("one cost prediction: DataParallel on 8 GPUs", one * 1e6, 100, " µs")
    report("a sweep of 1,000 predictions", median_seconds(sweep) * 1e3, 16, " ms")


if __name__ == "__main__":
    main()
