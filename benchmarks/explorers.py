"""The time of a slider move on the kernel's side: state in, picture out, at 8 GPUs and 128 rows.

python benchmarks/explorers.py
"""

from __future__ import annotations

import statistics
from time import perf_counter

from pairs import report

import labkit

# The explorer, the slider that is moved, and the values it goes to and fro between.
MOVES = (
    (labkit.SplitExplorer(rows=128, gpus=8), "rows", (127, 128)),
    (labkit.CallExplorer(rows=128, gpus=8, step=7), "step", (6, 7)),
    (labkit.ShapesExplorer(rows=128, gpus=8), "batch_dim", (1, 2)),
    (labkit.TimelineExplorer(rows=128, gpus=8), "moment", (50, 51)),
    (labkit.MemoryExplorer(rows=128, gpus=8), "rows", (127, 128)),
)


def main():
    for explorer, name, values in MOVES:
        times = []
        for turn in range(202):
            started = perf_counter()
            setattr(explorer, name, values[turn % 2])
            times.append(perf_counter() - started)
        report(f"{type(explorer).__name__}: a move of {name}", statistics.median(times) * 1e3, 16, " ms")


if __name__ == "__main__":
    main()
