"""Bytes as text and text as bytes. A KiB is 1,024 bytes; so, as everywhere in CUDA, is a "KB" that somebody types."""

from __future__ import annotations

import re

from .numbers import must

_UNITS = {"": 1, "b": 1}
for _power, _letter in enumerate("kmgt", start=1):
    for _unit in (_letter, f"{_letter}b", f"{_letter}ib"):
        _UNITS[_unit] = 1024**_power


def cuda_bytes(size: int) -> str:
    """``size`` bytes as CUDA's messages write them: ``"2.00 GiB"``, ``"1024.00 MiB"``, ``"512 bytes"``."""
    for power, unit in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        # Not at it: for 1 GiB format_size (c10/cuda/CUDACachingAllocator.cpp) says 1024.00 MiB.
        if size > 1024**power:
            return f"{size / 1024**power:.2f} {unit}"
    return f"{size} bytes"


def bytes_text(count: int) -> str:
    """A number of bytes in the largest unit that leaves at least 1: ``"1.5 MiB"``."""
    units = ("B", "KiB", "MiB", "GiB", "TiB")
    size, unit = float(count), 0
    while size >= 1023.5 and unit < len(units) - 1:
        size, unit = size / 1024, unit + 1
    return f"{size:.0f} {units[unit]}" if unit == 0 or size >= 100 else f"{size:.3g} {units[unit]}"


def parse_bytes(amount: int | str, name: str = "memory") -> int:
    """``"11 GiB"``, ``"512MB"`` (both powers of 1024) or a number of bytes, as bytes.

    Raises TypeError if it is neither, ValueError for a text that names no size and for fewer than 1 byte; both name
    the argument, in the language in use.
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
