"""Read from /proc the children of processes, their use of CPU and memory, and what threads wait for."""

from __future__ import annotations

import os
import platform
import re
from contextlib import suppress

_READ = {"x86_64": b"0", "aarch64": b"63"}.get(platform.machine(), b"")  # the system call's number
_LISTS_CHILDREN = os.path.exists(f"/proc/self/task/{os.getpid()}/children")  # most kernels do
_HERTZ = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


def children(pid: int) -> list[int]:
    """Return the ids of a process's children."""
    found: list[int] = []
    if not _LISTS_CHILDREN:
        everybody = [int(name) for name in os.listdir("/proc") if name.isdigit()]
        return [other for other in everybody if _parent(other) == pid]
    for thread in _list_threads(pid):
        with suppress(OSError):
            found += map(int, _read(f"/proc/{pid}/task/{thread}/children", 1 << 16).split())
    return found


def descendants(pid: int) -> list[int]:
    """Return the ids of all descendants of a process."""
    found = children(pid)
    for child in found:  # the list grows during the loop
        found += children(child)
    return found


def _parent(pid: int) -> int:
    try:
        return int(_stat(pid)[1])
    except OSError:
        return 0


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
    for thread in _list_threads(pid):
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


def _list_threads(pid: int) -> list[str]:
    try:
        return os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []


def _stat(pid: int, thread: int | str = "") -> list[bytes]:
    """Return the fields after the program's name, which may hold blanks and brackets, of a process or its thread."""
    where = f"task/{thread}/stat" if thread else "stat"
    return _read(f"/proc/{pid}/{where}").rpartition(b") ")[2].split()


def _read(path: str, most: int = 4096) -> bytes:
    """Read a file of /proc without Python's buffering: a judge reads many of them, twenty times a second."""
    file = os.open(path, os.O_RDONLY)
    try:
        return os.read(file, most)
    finally:
        os.close(file)
