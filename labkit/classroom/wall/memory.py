"""A control group that limits the memory of all workers of a template, with what the kernel holds for them (buffers of
sockets and pipes), where the system lets us make one: root on Linux, outside of most containers.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

_ROOTS = {  # of the two versions: where groups are made, and the file of the limit
    Path("/sys/fs/cgroup"): "memory.max",
    Path("/sys/fs/cgroup/memory"): "memory.limit_in_bytes",
}
_FILES = 256 << 20  # bytes of a worker's own files, which are memory too


class Group:
    """A group with the process ``pid`` in it, and all that it will start; what it has already is not counted."""

    def __init__(self, pid: int) -> None:
        self._limit: Path | None = None
        for root, limit in _ROOTS.items():
            with suppress(OSError):
                for left in root.glob("labkit-*"):  # of a grading that was killed
                    with suppress(OSError):
                        left.rmdir()
                folder = root / f"labkit-{os.getpid()}-{pid}"
                folder.mkdir()
                if (folder / limit).exists():
                    (folder / "cgroup.procs").write_text(str(pid))
                    self._limit = folder / limit
                    return
                folder.rmdir()

    def limit(self, memory: int, keeper: int) -> None:
        """Sets how many bytes there may be; beyond, the kernel ends first what the process ``keeper`` starts."""
        if self._limit:
            with suppress(OSError):
                self._limit.write_text(str(memory + _FILES))
                Path(f"/proc/{keeper}/oom_score_adj").write_text("1000")

    def close(self) -> None:
        """Takes the group away when its processes have ended."""
        for _ in range(100 if self._limit else 0):
            assert self._limit
            with suppress(OSError):
                self._limit.parent.rmdir()
                return
            time.sleep(0.01)
