"""What whole numbers a lesson takes: said once, for the lesson itself and for who starts it."""

from __future__ import annotations

from operator import index

from ..base.language import say

# The parameters that every lesson has, besides its language, and their ranges.
LIMITS = {"num_gpus": (0, 64), "batch_size": (1, 1_000_000), "data_size": (1, 1_000_000)}


def in_range(parameter: str, value: object) -> int:
    """``value`` as the whole number that ``parameter`` of a lesson must be; the error names it."""
    return whole(parameter, value, *LIMITS[parameter])


def whole(name: str, value: object, least: int, most: int) -> int:
    """``value`` as a whole number from ``least`` to ``most``; TypeError or ValueError names the argument."""
    try:
        number = index(value) if not isinstance(value, bool) else None
    except TypeError:
        number = None
    if number is None:
        raise TypeError(
            say(
                en=f"{name} must be a whole number from {least} to {most}, got {value!r}",
                zh=f"{name} 必须是 {least} 到 {most} 之间的整数，现在是 {value!r}",
            )
        )
    if not least <= number <= most:
        raise ValueError(
            say(
                en=f"{name} must be from {least} to {most}, got {number}",
                zh=f"{name} 必须在 {least} 到 {most} 之间，现在是 {number}",
            )
        )
    return number
