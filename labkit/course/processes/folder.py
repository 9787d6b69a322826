"""Folders for files that a lesson needs for a while: gone when the work, or the notebook's kernel, ends.

A kernel that is killed cannot clear up. So whoever holds a folder holds a lock in it, which the system lifts when
the process ends; the next folder that is made takes away those that nobody holds any more.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]  # asked before each use

_PREFIX = "labkit-lesson-"
_LOCK = ".held"

_folder: Folder | None = None


class Folder(tempfile.TemporaryDirectory[str]):
    """A new temporary folder; as a context manager it gives the path."""

    def __init__(self) -> None:
        super().__init__(prefix=_PREFIX, ignore_cleanup_errors=True)
        _take_away_abandoned(Path(self.name).parent)
        if fcntl:
            # Locked before it has its name: nobody finds it unlocked.
            self._lock = open(Path(self.name, ".new"), "w")  # noqa: SIM115 (held as long as the folder)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            os.rename(self._lock.name, Path(self.name, _LOCK))


def workspace() -> None:
    """Make the lesson's own folder the current one; modules written there can be imported.

    The same folder again if there is one, so that a cell that is run twice loses no files.
    """
    global _folder
    if _folder is None:
        _folder = Folder()
        sys.path.insert(0, _folder.name)
    os.chdir(_folder.name)


def _take_away_abandoned(parent: Path) -> None:
    for folder in parent.glob(f"{_PREFIX}*") if fcntl else ():
        with suppress(OSError):  # held by another process, or somebody else's
            if folder.lstat().st_uid != os.getuid():
                continue
            with open(folder / _LOCK) as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)
