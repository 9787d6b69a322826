"""Check the computer's own memory, which holds the tensors of simulated GPUs and may be smaller than theirs.

A full GPU is CUDA's error. A full computer is labkit's, raised before Linux kills the process. Memory that is never
written costs nothing: ``torch.empty`` of more than the computer has succeeds.
"""

from __future__ import annotations

import ctypes
import gc
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import product
from pathlib import Path

from labkit.base.language import say
from labkit.base.units import cuda_bytes

# Check the memory only for allocations of this many bytes.
WORTH = 32 * 2**20
# Bytes left to other programs; at most a 32nd part of the computer's memory.
_LEFT = 256 * 2**20

_PROC, _CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")
# Version 2 and 1 of Linux's control groups: the prefix in /proc/self/cgroup, the folder, the files with a container's
# limit and usage, and the prefix of cached files in memory.stat (Documentation/admin-guide/cgroup-v2.rst,
# cgroup-v1/memory.rst).
_VERSIONS = (
    ("0::", "", "memory.max", "memory.current", ""),
    (":memory:", "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
)
# The message of c10/core/impl/alloc_cpu.cpp.
_REFUSED = re.compile(r"DefaultCPUAllocator: .*you tried to allocate (\d+) bytes", re.DOTALL)


class OutOfHostMemory(RuntimeError):
    """Error for a tensor within the memory of its simulated GPU and beyond the computer's."""

    def __init__(self, device: object, wanted: int, left: int | None) -> None:
        rest = cuda_bytes(left or 0)
        there = "" if left is None else say(en=f" ({rest} left)", zh=f"（还剩 {rest}）")
        super().__init__(
            say(
                en=f"{device} is simulated and has room for {cuda_bytes(wanted)}, but this computer, which keeps its "
                f"tensors in its own memory, has not{there}: simulate smaller GPUs "
                '(labkit.simulate(..., memory="1 GiB")), which fill up like real ones, or use smaller tensors.',
                zh=f"{device} 是模拟的，它放得下这 {cuda_bytes(wanted)}；但它的张量其实存放在这台电脑的内存里，"
                f'而内存不够了{there}。请模拟小一些的 GPU（labkit.simulate(..., memory="1 GiB")），'
                "它们会像真实的 GPU 一样被占满；或者改用小一些的张量。",
            )
        )


def parse_refused_bytes(error: BaseException) -> int | None:
    """Return the bytes that the computer's allocator refused, by the text of ``error``; None for other errors."""
    found = _REFUSED.search(str(error))
    return None if found is None else int(found[1])


_looks = True


@contextmanager
def skip_memory_check() -> Iterator[None]:
    """Let :func:`check` pass everything in a ``with`` block."""
    global _looks
    _looks = False
    try:
        yield
    finally:
        _looks = True


def check(device: object, wanted: int, *, written: bool = False) -> None:
    """Raise :class:`OutOfHostMemory` if this computer lacks ``wanted`` bytes for a tensor on ``device``.

    written   whether the bytes are allocated already; then raise only if nothing is left.
    """
    needed = 0 if written else wanted
    left = available() if _looks else None
    if left is None or left > needed:
        return
    gc.collect()
    # glibc's allocator keeps freed memory until asked for it.
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    left = available()
    if left is not None and left <= needed:
        raise OutOfHostMemory(device, wanted, left)


def available() -> int | None:
    """Return the bytes that this process can still write; None where no process is killed for lack of memory."""
    if not sys.platform.startswith("linux"):
        return None
    found: list[int] = []
    total = 0
    with suppress(OSError, ValueError):
        lines = dict(line.split(":") for line in (_PROC / "meminfo").read_text("ascii").splitlines())
        names = "MemTotal", "MemAvailable", "SwapFree"
        total, free, swap = (1024 * int(lines[name].split()[0]) for name in names)
        found.append(free + swap)
    found.extend(_containers())
    return max(0, min(found) - min(_LEFT, total // 32)) if found else None


def _containers() -> Iterator[int]:
    """Yield the remaining bytes of each control group of this process."""
    with suppress(OSError):
        mine = (_PROC / "self/cgroup").read_text("utf-8").splitlines()
        for (mark, folder, limit, usage, total), line in product(_VERSIONS, mine):
            _, found, path = line.partition(mark)
            place = _CGROUPS / folder / path.lstrip("/")
            # Inside a container the path may be the host's, and a parent folder is the container's own group.
            for group in (place, *place.parents) if found else ():
                with suppress(OSError, ValueError):
                    most = int((group / limit).read_text("ascii"))
                    rows = (group / "memory.stat").read_text("ascii").splitlines()
                    stat = dict(row.split() for row in rows)
                    cached = sum(int(stat.get(f"{total}{files}_file", 0)) for files in ("inactive", "active"))
                    yield most - int((group / usage).read_text("ascii")) + cached
