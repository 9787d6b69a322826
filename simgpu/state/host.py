"""The computer's own memory, which holds the tensors of simulated GPUs, and may be smaller than theirs.

A GPU that is full is CUDA's error. Where a GPU has room and the computer has none, the error says so, before Linux ends
the process for it. Memory that is never written costs nothing: ``torch.empty`` of more than there is goes through.
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

# Fewer bytes than this are not worth a look.
WORTH = 32 * 2**20
# So many bytes are left to other programs; of a small computer's memory, a 32nd part.
_LEFT = 256 * 2**20

_PROC, _CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")
# The files with a container's limit and with what it has taken, and before which lines in memory.stat cached files are
# counted: the second version of Linux's control groups, and the first (Documentation/admin-guide/cgroup-v2.rst,
# cgroup-v1/memory.rst).
_VERSIONS = (
    ("0::", "", "memory.max", "memory.current", ""),
    (":memory:", "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
)
# The text of c10/core/impl/alloc_cpu.cpp.
_REFUSED = re.compile(r"DefaultCPUAllocator: .*you tried to allocate (\d+) bytes", re.DOTALL)


class OutOfHostMemory(RuntimeError):
    """The computer has no memory for a tensor for which its simulated GPU has room."""

    def __init__(self, device: object, wanted: int, left: int | None) -> None:
        rest = cuda_bytes(left or 0)
        there = "" if left is None else say(en=f" ({rest} left)", zh=f"（还剩 {rest}）")
        super().__init__(
            say(
                en=f"{device} is simulated and has room for {cuda_bytes(wanted)}, but this computer, which keeps its "
                f"tensors in its own memory, has not{there}: simulate smaller GPUs "
                '(labkit.simulate(..., memory="1 GiB")), which fill up as real ones do, or use smaller tensors.',
                zh=f"{device} 是模拟的，它放得下这 {cuda_bytes(wanted)}；但它的张量其实存放在这台电脑的内存里，"
                f'而内存不够了{there}。请模拟小一些的 GPU（labkit.simulate(..., memory="1 GiB")），'
                "它们会像真实的 GPU 一样被占满；或者改用小一些的张量。",
            )
        )


def parse_refused_bytes(error: BaseException) -> int | None:
    """The bytes that the computer's allocator did not give, if that is what ``error`` says."""
    found = _REFUSED.search(str(error))
    return None if found is None else int(found[1])


_looks = True


@contextmanager
def skip_memory_check() -> Iterator[None]:
    """Inside, :func:`check` lets everything pass."""
    global _looks
    _looks = False
    try:
        yield
    finally:
        _looks = True


def check(device: object, wanted: int, *, written: bool = False) -> None:
    """Raise :class:`OutOfHostMemory` if this computer has not ``wanted`` bytes for a tensor on ``device``.

    written   whether they have been taken already, and nothing else is left.
    """
    needed = 0 if written else wanted
    left = available() if _looks else None
    if left is None or left > needed:
        return
    gc.collect()
    # What glibc's allocator keeps of freed memory, it gives back when asked.
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    left = available()
    if left is not None and left <= needed:
        raise OutOfHostMemory(device, wanted, left)


def available() -> int | None:
    """The bytes that this process could still write; None outside of Linux, which alone ends processes for them."""
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
    """The bytes that each control group of this process has left."""
    with suppress(OSError):
        mine = (_PROC / "self/cgroup").read_text("utf-8").splitlines()
        for (mark, folder, limit, taken, total), line in product(_VERSIONS, mine):
            _, found, path = line.partition(mark)
            place = _CGROUPS / folder / path.lstrip("/")
            # Within a container the path may be the host's, and its own group is what is mounted.
            for group in (place, *place.parents) if found else ():
                with suppress(OSError, ValueError):
                    most = int((group / limit).read_text("ascii"))
                    rows = (group / "memory.stat").read_text("ascii").splitlines()
                    stat = dict(row.split() for row in rows)
                    cached = sum(int(stat.get(f"{total}{files}_file", 0)) for files in ("inactive", "active"))
                    yield most - int((group / taken).read_text("ascii")) + cached
