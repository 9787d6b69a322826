"""Check the arguments that users give, numbers above all. Every error names the argument."""

from __future__ import annotations

from collections.abc import Iterable
from operator import index
from typing import TypeVar

from .language import say

_Kind = TypeVar("_Kind")

# The most GPUs of any machine, plan or lesson: a typing error must not fill the memory.
MOST_GPUS = 1024


def integer(name: str, value: object, least: int, most: int | None = None) -> int:
    """Return ``value`` as an int from ``least`` to ``most`` (None: unlimited).

    Raises TypeError if it is no whole number (bools and tensors of them are not), ValueError if it is out of range.
    """
    # Checked by name, without importing torch: a tensor of torch.bool has an __index__.
    truth = isinstance(value, bool) or str(getattr(value, "dtype", "")) == "torch.bool"
    try:
        number = None if truth else index(value)  # type: ignore[arg-type]  # raises without __index__
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
    """Return ``value`` if it is a number of at least 0 (``above``: above 0); else raise TypeError or ValueError."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(must(name, value, en="a number", zh="是数"))
    if above and not value > 0:  # not "<= 0", which lets nan pass
        raise ValueError(must(name, value, en="above 0", zh="大于 0"))
    if not above and not value >= 0:
        raise ValueError(must(name, value, en="at least 0", zh="不小于 0"))
    return value


def one_of(name: str, value: str, known: Iterable[str]) -> str:
    """Return ``value``, or raise ValueError unless ``known`` contains it."""
    if value not in known:
        names = ", ".join(map(repr, known))
        raise ValueError(must(name, value, en=f"one of {names}", zh=f"是 {names} 之一"))
    return value


def instance(name: str, value: object, kind: type[_Kind], source: str = "") -> _Kind:
    """Return ``value``, or raise TypeError unless it is a ``kind``. ``source`` names a function that returns one."""
    if not isinstance(value, kind):
        en = f"what {source} gives" if source else f"a {kind.__name__}"
        zh = f"是 {source} 的返回值" if source else f"是 {kind.__name__}"
        raise TypeError(must(name, value, en=en, zh=zh, typed=True))
    return value


def must(name: str, value: object, *, en: str, zh: str, typed: bool = False) -> str:
    """Return an error's text about an argument: ``"rows must be at least 1, got 0"``. ``typed``: with the type."""
    kind = type(value).__name__
    return say(
        en=f"{name} must be {en}, got {value!r}" + (f" ({kind})" if typed else ""),
        zh=f"{name} 必须{zh}，现在是 {value!r}" + (f"（{kind}）" if typed else ""),
    )


def plural(count: int, noun: str) -> str:
    """Return ``count`` and the English noun: ``"1 GPU"``, ``"2 GPUs"``."""
    return f"{count} {noun}{'s' * (count != 1)}"
