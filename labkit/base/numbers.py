"""What users give, numbers above all: checked in one place, so that every error names the argument alike."""

from __future__ import annotations

from operator import index
from typing import TypeVar

from .language import say

_Kind = TypeVar("_Kind")

# More GPUs than this no machine, plan or lesson takes: a slip of the keyboard would fill the memory.
MOST_GPUS = 1024


def whole(name: str, value: object, least: int, most: int | None = None) -> int:
    """``value`` as an int from ``least`` to ``most`` (None: without end).

    Raises TypeError if it is no whole number (True and False are none, nor is a tensor of them), ValueError if it is
    out of range; both name the argument, in the language in use.
    """
    # A tensor of torch.bool has an __index__; torch itself need not be loaded to see what it is.
    truth = isinstance(value, bool) or str(getattr(value, "dtype", "")) == "torch.bool"
    try:
        number = None if truth else index(value)  # type: ignore[arg-type]  # what has no __index__ raises
    except TypeError:
        number = None
    if number is None:
        kind = type(value).__name__
        raise TypeError(
            say(
                en=f"{name} must be a whole number, got {value!r} ({kind})",
                zh=f"{name} 必须是整数，现在是 {value!r}（{kind}）",
            )
        )
    if number < least or (most is not None and number > most):
        if most is None:
            bounds = say(en=f"at least {least}", zh=f"不小于 {least}")
        else:
            bounds = say(en=f"from {least} to {most}", zh=f"在 {least} 到 {most} 之间")
        raise ValueError(
            say(en=f"{name} must be {bounds}, got {number}", zh=f"{name} 必须{bounds}，现在是 {number}")
        )
    return number


def amount(name: str, value: object, *, above: bool = False) -> float:
    """``value`` if it is a number of at least 0 (``above``: above 0); else TypeError or ValueError."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(
            say(en=f"{name} must be a number, got {value!r}", zh=f"{name} 必须是数，现在是 {value!r}")
        )
    if not value >= 0 or (above and value == 0):  # not a number is not at least 0 either
        bounds = say(en="above 0", zh="大于 0") if above else say(en="at least 0", zh="不小于 0")
        raise ValueError(
            say(en=f"{name} must be {bounds}, got {value}", zh=f"{name} 必须{bounds}，现在是 {value}")
        )
    return value


def instance(name: str, value: object, kind: type[_Kind]) -> _Kind:
    """``value`` if it is a ``kind``, else TypeError."""
    if not isinstance(value, kind):
        got = f"{value!r} ({type(value).__name__})"
        raise TypeError(
            say(
                en=f"{name} must be a {kind.__name__}, got {got}",
                zh=f"{name} 必须是 {kind.__name__}，现在是 {got}",
            )
        )
    return value


def plural(count: int, noun: str) -> str:
    """``count`` and the English noun: ``"1 GPU"``, ``"2 GPUs"``."""
    return f"{count} {noun}{'s' * (count != 1)}"
