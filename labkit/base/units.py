"""Bytes and seconds as text, and text as bytes. A KiB is 1,024 bytes; a typed "KB" is too, as everywhere in CUDA."""

from __future__ import annotations

import re

from .language import say
from .numbers import must

_UNITS = {"": 1, "b": 1}
for _power, _letter in enumerate("kmgt", start=1):
    for _unit in (_letter, f"{_letter}b", f"{_letter}ib"):
        _UNITS[_unit] = 1024**_power


def cuda_bytes(size: int) -> str:
    """Format ``size`` bytes as CUDA's messages do: ``"2.00 GiB"``, ``"1024.00 MiB"``, ``"512 bytes"``."""
    for power, unit in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        # ">", because format_size (c10/cuda/CUDACachingAllocator.cpp) prints 1 GiB as 1024.00 MiB.
        if size > 1024**power:
            return f"{size / 1024**power:.2f} {unit}"
    return f"{size} bytes"


def localized_bytes(size: int) -> str:
    """Format ``size`` as :func:`cuda_bytes`, with the word "bytes" in the language in use."""
    return cuda_bytes(size).replace("bytes", say(en="bytes", zh="字节"))


def bytes_text(count: int) -> str:
    """Format a number of bytes in the largest unit that leaves at least 1: ``"1.5 MiB"``."""
    units = ("B", "KiB", "MiB", "GiB", "TiB")
    size, unit = float(count), 0
    while size >= 1023.5 and unit < len(units) - 1:
        size, unit = size / 1024, unit + 1
    return f"{size:.0f} {units[unit]}" if unit == 0 or size >= 100 else f"{size:.3g} {units[unit]}"


def time_unit(seconds: float) -> tuple[float, str]:
    """Return the unit for a time, and how many of it make a second: s, ms or µs."""
    size = abs(seconds)
    return (1.0, "s") if size >= 0.9995 else (1e3, "ms") if size >= 0.9995e-3 or not size else (1e6, "µs")


def duration(seconds: float, of: float | None = None, digits: int = 3) -> str:
    """Format a time: ``"231 s"``, ``"2.5 ms"``, ``"37 µs"``; in the unit of the time ``of`` if given."""
    scale, unit = time_unit(seconds if of is None else of)
    value = seconds * scale
    return f"{value:,.0f} {unit}" if value >= 10 ** (digits - 1) - 0.5 else f"{value:.{digits}g} {unit}"


def parse_bytes(amount: int | str, name: str = "memory") -> int:
    """Parse ``"11 GiB"``, ``"512MB"`` (both powers of 1024) or a number of bytes.

    Raises TypeError for another type, ValueError for a text without a size and for fewer than 1 byte.
    """
    wrong = must(name, amount, en="bytes or text like '16 GiB'", zh="是字节数，或 '16 GiB' 这样的文字")
    if isinstance(amount, bool) or not isinstance(amount, (int, str)):
        raise TypeError(wrong)
    if isinstance(amount, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", amount)
        if not match or match[2].lower() not in _UNITS:
            raise ValueError(wrong)
        amount = int(float(match[1]) * _UNITS[match[2].lower()])
    if amount < 1:
        raise ValueError(must(name, amount, en="more than 0 bytes", zh="大于 0 字节"))
    return amount
