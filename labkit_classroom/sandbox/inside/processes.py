"""Read from /proc the children of processes, their use of CPU and memory, and what threads wait for."""

from __future__ import annotations

import os
import platform
import re
from contextlib import suppress

_READ = {"x86_64": b"0", "aarch64": b"63"}.get(platform.machine(), b"")  # the system call's number
_HERTZ = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


def children() -> dict[int, list[int]]:
    """Return the children of each process, by its id."""
    found: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError):
                found.setdefault(int(_stat(int(name))[1]), []).append(int(name))
    return found


def descendants(below: dict[int, list[int]], *roots: int) -> list[int]:
    """Return all descendants of ``roots``; ``below``: the children of every process."""
    found = [child for root in roots for child in below.get(root, ())]
    for pid in found:  # the list grows during the loop
        found += below.get(pid, ())
    return found


def cpu_seconds(pid: int) -> float:
    """Return CPU seconds of a process, including its ended children."""
    return sum(map(int, _stat(pid)[11:15])) / _HERTZ


def count_waiting_threads(pid: int, fd: int, pipe: int) -> tuple[int, bool]:
    """Count the threads of a process that wait to read from ``fd``; return also whether any thread runs.

    pipe   the inode of the pipe that ``fd`` must be.

    Where the system hides what a thread waits for, count each thread that waits.
    """
    count, is_awake = 0, False
    with suppress(PermissionError):
        if os.stat(f"/proc/{pid}/fd/{fd}").st_ino != pipe:
            return 0, False
    for thread in os.listdir(f"/proc/{pid}/task"):
        with suppress(OSError):
            if _stat(pid, thread)[0] not in (b"S", b"Z", b"X"):
                is_awake = True
                continue
            try:
                count += _read(f"/proc/{pid}/task/{thread}/syscall").split()[:2] == [_READ, b"%#x" % fd]
            except PermissionError:
                count += 1
    return count, is_awake


def read_memory(pid: int) -> tuple[int, int]:
    """Return bytes of a process: its address space, and its memory without files (private and shared)."""
    found = dict(re.findall(rb"^(\w+):\s+(\d+) kB", _read(f"/proc/{pid}/status"), re.MULTILINE))
    size, own, shared = (int(found.get(name, 0)) << 10 for name in (b"VmSize", b"RssAnon", b"RssShmem"))
    return size, own + shared


def _stat(pid: int, thread: int | str = "") -> list[bytes]:
    """Return the fields after the program's name, which may hold blanks and brackets, of a process or its thread."""
    where = f"task/{thread}/stat" if thread else "stat"
    return _read(f"/proc/{pid}/{where}").rpartition(b") ")[2].split()


def _read(path: str) -> bytes:
    """Read a file of /proc without Python's buffering: a judge reads some hundred of them, twenty times a second."""
    file = os.open(path, os.O_RDONLY)
    try:
        return os.read(file, 4096)
    finally:
        os.close(file)
