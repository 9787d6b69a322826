"""Parts a table of measured runs: one problem of three is kept back, by a hash of what only plans do not change.

``python -m tools.plans.part ROWS.csv FOLDER`` writes ``fitted.csv`` and ``kept_back.csv``.
"""

from __future__ import annotations

import csv
import hashlib
import sys
from collections.abc import Mapping
from pathlib import Path

_PROBLEM = {
    "vtrain_single": ("set", "layers", "hidden", "seq", "gbs_seqs", "gpus"),
    "mosaic": ("set", "gpu", "model"),
    "internevo": ("set", "note", "seq", "gpus"),
}


def kept_back(row: Mapping[str, str]) -> bool:
    """Whether the problem of ``row`` is one of those that nothing is fitted to."""
    problem = "/".join(row[name] for name in _PROBLEM[row["set"]])
    return int(hashlib.sha256(problem.encode()).hexdigest(), 16) % 3 == 0


def main(table: str, folder: str) -> None:
    with open(table, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    for name, wanted in (("fitted", False), ("kept_back", True)):
        with (Path(folder) / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(row for row in rows if kept_back(row) == wanted)


if __name__ == "__main__":
    main(*sys.argv[1:3])
