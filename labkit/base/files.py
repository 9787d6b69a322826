"""Writing files of the user's, whole or not at all, whatever happens in between; and saying why one failed.

The new text is written beside the file and takes its place when it is on the disk: at every moment the file is the
old one or the new one. A process that is killed may leave its new text there; the next that writes takes it away.
Tables of text that lie beside modules are read here too.
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
_ABANDONED = 3600  # seconds: nobody is still writing a file as old as that


def write_whole(path: Path, text: str) -> None:
    """Make ``text``, in UTF-8, the content of the file ``path``, whose folder is there. OSError leaves it as it was.

    A link stays one, and the file that it names is written. A file without the right to write it, a folder and a
    device are not replaced.
    """
    content = text.encode("utf-8")
    file = real_file(path)
    if file.exists() and not os.access(file, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    _take_away_abandoned(file)
    beside = file.with_name(f".{file.name}.{secrets.token_hex(4)}{_BESIDE}")
    try:
        # Made by open, so that it gets the rights that a new file gets here, not those of a secret one.
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
            error.filename, error.filename2 = str(path), None  # not that of the one beside it
        raise


def real_file(path: Path) -> Path:
    """The file that ``path`` leads to, which may not exist yet; OSError for a folder, a device, a circle of links."""
    file = Path(os.path.realpath(path))
    if file.is_symlink():
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
    if file.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if file.exists() and not file.is_file():
        raise OSError(errno.EINVAL, say(en="not a regular file", zh="不是普通文件"), str(path))
    return file


def reason(error: OSError) -> str:
    """Why a file could not be read or written, in a few words, in the language in use."""
    if isinstance(error, TimeoutError):  # of a lock
        return say(en="another program is using it", zh="另一个程序正在使用它")
    known = {getattr(errno, name, -1): say(en=en, zh=zh) for name, en, zh in rows_beside(__file__)}
    return known.get(error.errno or 0) or error.strerror or str(error)


def _take_away_abandoned(file: Path) -> None:
    long_ago = time.time() - _ABANDONED
    for beside in file.parent.glob(f".{escape(file.name)}.????????{_BESIDE}"):
        with suppress(OSError):  # somebody else's, or somebody else was faster
            if beside.stat().st_mtime < long_ago:
                beside.unlink()


def rows_beside(module: str) -> list[list[str]]:
    """The rows of the table of text beside the module with this file, each cut at its bars."""
    text = Path(module).with_suffix(".txt").read_text("utf-8")
    return [[part.strip() for part in row.split("|")] for row in text.splitlines()]
