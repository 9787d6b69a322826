"""The way in which claims are measured: two programs in turn within one run, the median of their ratios."""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable
from time import perf_counter


def ratio(
    one: Callable[[], object], other: Callable[[], object], *, pairs: int = 21, warmup: int = 3
) -> float:
    """The median over ``pairs`` of the time of ``one`` against the time of ``other``."""
    ratios = []
    gc.collect()
    gc.disable()
    try:
        for turn in range(warmup + pairs):
            # Each goes first half of the time, so that neither always meets the warmer cache.
            order = (one, other) if turn % 2 else (other, one)
            times = {}
            for program in order:
                started = perf_counter()
                program()
                times[program] = perf_counter() - started
            if turn >= warmup:
                ratios.append(times[one] / times[other])
            gc.collect()
    finally:
        gc.enable()
    return statistics.median(ratios)


def report(claim: str, figure: float, target: float, unit: str = "×", *, at_least: bool = False) -> None:
    """One line: the claim, its figure, its target, and whether it is met."""
    met = figure >= target if at_least else figure <= target
    sign = "≥" if at_least else "≤"
    print(
        f"{'ok    ' if met else 'MISSED'} {claim:<74} {figure:8.2f}{unit}  (target {sign} {target:g}{unit})",
        flush=True,
    )


def bound(claim: str, figure: float, unit: str = "×") -> None:
    """One line for a figure that has no target: it says what could be reached at all."""
    print(f"       {claim:<74} {figure:8.2f}{unit}", flush=True)
