"""Reads in /proc whose children processes are, and how much they have taken."""

from __future__ import annotations

import os
from contextlib import suppress

_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
_HERTZ = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


def children() -> dict[int, list[int]]:
    """The children of every process that has some."""
    found: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError):
                found.setdefault(int(_stat(int(name))[1]), []).append(int(name))
    return found


def descendants(*roots: int) -> list[int]:
    """The children of ``roots``, their children, and so on."""
    below = children()
    found = [child for root in roots for child in below.get(root, ())]
    for pid in found:  # grows as it is walked
        found += below.get(pid, ())
    return found


def cpu(pid: int) -> float:
    """Seconds of processor time of a process, and of its children that have ended."""
    return sum(map(int, _stat(pid)[11:15])) / _HERTZ


def memory(pid: int) -> tuple[int, int]:
    """Bytes of a process: addresses it has, memory that is not a file's."""
    with open(f"/proc/{pid}/statm", "rb") as stream:
        size, resident, shared = map(int, stream.read().split()[:3])
    return size * _PAGE, (resident - shared) * _PAGE


def _stat(pid: int) -> list[bytes]:
    """Gives the fields after the program's name, which may hold blanks and brackets."""
    with open(f"/proc/{pid}/stat", "rb") as stream:
        return stream.read().rpartition(b") ")[2].split()
