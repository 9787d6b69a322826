"""``python as_nobody.py COMMAND...``: run a command as a user without rights, in a world where that user can read
Python and labkit (root's home may be closed to others). For root on Linux only; nothing outside is changed.
"""

import ctypes
import os
import sys
from pathlib import Path

NOBODY = 65534
libc = ctypes.CDLL(None, use_errno=True)


def mount(source, target, kind, flags, options=""):
    words = [word and str(word).encode() for word in (source, target, kind)]
    if libc.mount(*words, ctypes.c_ulong(flags), options.encode()):
        raise OSError(ctypes.get_errno(), f"mount {target}")


def closed(path):
    """The highest folder above ``path`` that others may not enter; None if there is none."""
    above = [*reversed(path.parents), path]
    return next((folder for folder in above if not folder.stat().st_mode & 0o001), None)


def open_up(paths):
    """In this process's own mounts: where a folder on the way to one of ``paths`` is closed, put an open one there."""
    if libc.unshare(0x20000):
        raise OSError(ctypes.get_errno(), "unshare")
    mount("none", "/", None, 16384 | 1 << 18)
    for path in paths:
        if door := closed(path):
            mount(path, "/mnt", None, 4096 | 16384)
            mount("tmpfs", door, "tmpfs", 0, "mode=755")
            path.mkdir(parents=True, exist_ok=True)
            mount("/mnt", path, None, 4096 | 16384)
            libc.umount2(b"/mnt", 2)


if __name__ == "__main__":
    open_up([Path(path).resolve() for path in (sys.base_prefix, sys.prefix, Path(__file__).parents[2])])
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    os.environ |= {"HOME": "/tmp", "PYTHONDONTWRITEBYTECODE": "1"}
    os.execv(sys.argv[1], sys.argv[1:])
