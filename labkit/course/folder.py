"""A folder for the files that a lesson's cells write: empty at first, gone when the notebook's kernel ends."""

from __future__ import annotations

import os
import sys
import tempfile

_folder: tempfile.TemporaryDirectory | None = None


def workspace() -> None:
    """Make the lesson's own folder the current one; modules written there can be imported.

    The same folder again if there is one, so that a cell that is run twice loses no files.
    """
    global _folder
    if _folder is None:
        _folder = tempfile.TemporaryDirectory(prefix="labkit-", ignore_cleanup_errors=True)
        sys.path.insert(0, _folder.name)
    os.chdir(_folder.name)
