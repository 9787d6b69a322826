"""Exercises of lesson 08: which rows a rank reads, what a star sends, and what ZeRO saves."""

from __future__ import annotations

from math import isclose

from labkit.course.exercise import derived, judge
from labkit.course.judging import Hints, Named
from labkit.course.kinds import A_NUMBER, numbers


@judge("08.rows", numbers)
def _rows(rows: tuple[int, ...]) -> Hints:
    if rows == (3, 7, 1):
        return
    mistakes = {
        (3, 7): "too_few",
        (9,): "neighbours",
        (7, 8, 9): "neighbours",
        (6, 7, 8): "neighbours",
        (3, 7, 0): "turn_of_2",
        (3, 7, 3): "own_row",
    }
    yield Named(mistakes.get(rows, "from_one" if rows[:2] in ((2, 6), (4, 8)) else "in_turn"))


@derived("08.star", ranks=(6, 2, 16), fresh=lambda random: {"ranks": random.randint(3, 16)})
def _star(ranks: int) -> dict[str, int]:
    return {"others": ranks - 1, "both_ways": 2 * (ranks - 1)}


def _gigabytes(stage: int, ranks: int) -> float:
    """Gigabytes on each rank for 3 billion parameters: weights, gradients, two numbers of Adam, 4 bytes each."""
    weights, gradients, states = (
        4 / (ranks if stage >= 3 else 1),
        4 / (ranks if stage >= 2 else 1),
        8 / (ranks if stage >= 1 else 1),
    )
    return 3 * (weights + gradients + states)


@derived("08.zero", ranks=(6, 2, 64))
def _zero(ranks: int) -> dict[str, float]:
    return {"stage_2": _gigabytes(2, ranks)}


@judge("08.zero", A_NUMBER)
def _zero_bytes(value: float, ranks: int) -> Hints:
    value = value / 1e9 if value > 1e6 else value  # in bytes is right as well
    right = _gigabytes(2, ranks)
    if isclose(value, right, rel_tol=5e-3):
        return
    mistakes = {
        "one_parameter": right / 3,
        "stage_0": _gigabytes(0, ranks),
        "stage_1": _gigabytes(1, ranks),
        "stage_3": _gigabytes(3, ranks),
        "gone": 12,
    }
    near = (name for name, made in mistakes.items() if isclose(value, made, rel_tol=5e-3))
    yield Named(next(near, "other"))
