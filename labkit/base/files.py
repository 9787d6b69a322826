"""Write a user's file completely or not at all, and say why a write failed.

The new text goes to a file beside the old one, which replaces it once it is on the disk. So the file is always either
the old or the new one. A killed process may leave its new file there; the next write removes it. Tables of text beside
modules are read here too.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import time
from contextlib import suppress
from glob import escape
from pathlib import Path

from .language import say

_BESIDE = ".new"
_ABANDONED = 3600  # seconds after which no program is still writing the file


def write_whole(path: Path, text: str) -> None:
    """Replace the content of the file ``path`` by ``text`` in UTF-8. An OSError leaves the old content.

    A link stays a link: the file it names is written. A read-only file, a folder or a device is not replaced.
    """
    content = text.encode("utf-8")
    file = real_file(path)
    if file.exists() and not os.access(file, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    _take_away_abandoned(file)
    beside = file.with_name(f".{file.name}.{secrets.token_hex(4)}{_BESIDE}")
    try:
        # os.open gives the permissions of any new file; tempfile would make it private.
        new = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
        with open(new, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())  # else a power cut could leave the new name without its content
        with suppress(FileNotFoundError):
            shutil.copymode(file, beside)
        os.replace(beside, file)
    except BaseException as error:
        with suppress(OSError):
            os.unlink(beside)
        if isinstance(error, OSError):
            error.filename, error.filename2 = str(path), None  # the user's file, not the temporary one
        raise


def real_file(path: Path) -> Path:
    """Return the file that ``path`` leads to, which may not exist yet; OSError for a folder, a device, a circle of
    links.
    """
    file = Path(os.path.realpath(path))
    if file.is_symlink():
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
    if file.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if file.exists() and not file.is_file():
        raise OSError(errno.EINVAL, say(en="not a regular file", zh="不是普通文件"), str(path))
    return file


def reason(error: OSError) -> str:
    """Say in a few words why a file could not be read or written."""
    if isinstance(error, TimeoutError):  # filelock's Timeout: another process holds the lock
        return say(en="another program is using it", zh="另一个程序正在使用它")
    # files.txt has rows (name in errno, English, Chinese); a system without that name never raises the error.
    known = {getattr(errno, name, -1): say(en=en, zh=zh) for name, en, zh in rows_beside(__file__)}
    return known.get(error.errno or 0) or error.strerror or str(error)


def _take_away_abandoned(file: Path) -> None:
    long_ago = time.time() - _ABANDONED
    for beside in file.parent.glob(f".{escape(file.name)}.????????{_BESIDE}"):
        with suppress(OSError):  # not ours, or already removed
            if beside.stat().st_mtime < long_ago:
                beside.unlink()


def rows_beside(module: str) -> list[list[str]]:
    """Read the table in the ``.txt`` beside ``module``: rows, each cut at its bars."""
    text = Path(module).with_suffix(".txt").read_text("utf-8")
    return [[part.strip() for part in row.split("|")] for row in text.splitlines()]
