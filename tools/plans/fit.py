"""Fits the constants of :mod:`labkit.cost.plan` to measured runs: ``python -m tools.plans.fit ROWS.csv ROUNDS``.

Each constant in turn is moved up and down by a factor, and kept where the mean error (of logarithms, all sets alike)
gets smaller. It prints the constants; they are put into the code by hand.
"""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from typing import Any

from labkit.cost import plan
from labkit.cost.hardware import ACCELERATORS
from labkit.cost.rows import Row, read_rows

_CONSTANTS = "HALF_SIDE LAYER_BYTES SCORE_BYTES JITTER SHARP".split()
_GPUS = (
    "a100.product a100.attention a100.reduce_bandwidth a100.network_bandwidth h100.product h100.attention "
    "h100.network_bandwidth"
).split()
_SOFTWARE = (
    "fsdp.start fsdp.overlap fsdp.step megatron.start megatron.overlap megatron.step megatron.moved "
    "megatron-2021.start megatron-2021.overlap megatron-2021.step"
).split()
_LINKS = ("reduce_bandwidth", "network_bandwidth")


def _get(name: str) -> float:
    if "." not in name:
        return float(getattr(plan, name))
    owner, field = name.split(".")
    found: Any = ACCELERATORS[owner] if name in _GPUS else plan.SOFTWARE[owner]
    return float(getattr(found.links if field in _LINKS else found, field))


def _put(name: str, value: float) -> None:
    if "." not in name:
        setattr(plan, name, value)
        return
    owner, field = name.split(".")
    changed: dict[str, Any] = {field: value}
    if name not in _GPUS:
        changed[field] = min(value, 1.0) if field == "overlap" else value
        plan.SOFTWARE[owner] = replace(plan.SOFTWARE[owner], **changed)
        return
    if field in _LINKS:
        changed = {"links": replace(ACCELERATORS[owner].links, **changed)}
    for kind in (owner, "a100-40") if owner == "a100" else (owner,):
        ACCELERATORS[kind] = replace(ACCELERATORS[kind], **changed)


def error(rows: list[Row]) -> float:
    """The mean error of the logarithms of times, each set counting alike, added up."""
    sets: dict[str, list[float]] = {}
    for row in rows:
        if row.seconds:
            sets.setdefault(row.set, []).append(abs(math.log(row.forecast().seconds / row.seconds)))
    return sum(sum(found) / len(found) for found in sets.values())


def main(table: str, rounds: int) -> None:
    rows, names = read_rows(table), [*_CONSTANTS, *_GPUS, *_SOFTWARE]
    best, factors = error(rows), dict.fromkeys(names, 1.2)
    for _ in range(rounds):
        for name in names:
            before = _get(name)
            for factor in (factors[name], 1 / factors[name]):
                _put(name, before * factor)
                if (now := error(rows)) < best - 1e-6:
                    best, factors[name] = now, min(1.5, 1 + (factors[name] - 1) * 1.3)
                    break
            else:
                _put(name, before)
                factors[name] = 1 + (factors[name] - 1) * 0.6
    print(f"{best:.4f}", *(f"{name} = {_get(name):.3g}" for name in names), sep="\n")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
