"""Checks of the arguments that users give, numbers above all. Every error names the argument in the same way."""

from __future__ import annotations

from collections.abc import Iterable
from operator import index
from typing import TypeVar

from .language import say

_Kind = TypeVar("_Kind")

# No machine, plan or lesson takes more GPUs than this: a slip of the keyboard would fill the memory.
MOST_GPUS = 1024


def integer(name: str, value: object, least: int, most: int | None = None) -> int:
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
        raise TypeError(must(name, value, en="a whole number", zh="是整数", typed=True))
    if number < least or (most is not None and number > most):
        if most is None:
            raise ValueError(must(name, number, en=f"at least {least}", zh=f"不小于 {least}"))
        raise ValueError(must(name, number, en=f"from {least} to {most}", zh=f"在 {least} 到 {most} 之间"))
    return number


def amount(name: str, value: object, *, above: bool = False) -> float:
    """``value`` if it is a number of at least 0 (``above``: above 0); else TypeError or ValueError."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(must(name, value, en="a number", zh="是数"))
    if above and not value > 0:  # so asked, because nan is not above 0 either
        raise ValueError(must(name, value, en="above 0", zh="大于 0"))
    if not above and not value >= 0:
        raise ValueError(must(name, value, en="at least 0", zh="不小于 0"))
    return value


def one_of(name: str, value: str, known: Iterable[str]) -> str:
    """``value`` if it is one of ``known``, else ValueError."""
    if value not in known:
        names = ", ".join(map(repr, known))
        raise ValueError(must(name, value, en=f"one of {names}", zh=f"是 {names} 之一"))
    return value


def instance(name: str, value: object, kind: type[_Kind], source: str = "") -> _Kind:
    """``value`` if it is a ``kind``, else TypeError, which says what gives one: ``source``."""
    if not isinstance(value, kind):
        en = f"what {source} gives" if source else f"a {kind.__name__}"
        zh = f"是 {source} 的返回值" if source else f"是 {kind.__name__}"
        raise TypeError(must(name, value, en=en, zh=zh, typed=True))
    return value


def must(name: str, value: object, *, en: str, zh: str, typed: bool = False) -> str:
    """An error's text about an argument: ``"rows must be at least 1, got 0"``. ``typed``: it names the type, too."""
    kind = type(value).__name__
    return say(
        en=f"{name} must be {en}, got {value!r}" + (f" ({kind})" if typed else ""),
        zh=f"{name} 必须{zh}，现在是 {value!r}" + (f"（{kind}）" if typed else ""),
    )


def plural(count: int, noun: str) -> str:
    """``count`` and the English noun: ``"1 GPU"``, ``"2 GPUs"``."""
    return f"{count} {noun}{'s' * (count != 1)}"
