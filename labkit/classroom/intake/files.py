"""The files that came back, those in archives too, and in archives within these.

Links are not followed. What one archive or one folder of an archive may unpack to is bounded, so that a bad one costs
nobody else their marks.
"""

from __future__ import annotations

import io
import os
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import IO

from ...base.files import reason
from ..words import Note, harmless
from .document import MOST_BYTES, note

_MOST_FILES = 20_000
# Bytes that a top folder of an archive may unpack to, as a learning platform makes one for each student; and all of it.
_MOST_IN_FOLDER, _MOST_IN_ARCHIVE = 100_000_000, 4_000_000_000
# Archives within archives: a class's, a student's, and one that the student's system made of a folder.
_MOST_DEEP = 3
# What systems and tools leave in folders, and what is no submission of anything.
_IGNORED = re.compile(
    r"(\.(?!\.$).*|__MACOSX|Thumbs\.db|desktop\.ini|__pycache__|README(\..*)?)", re.IGNORECASE
)


def files_in(folder: Path, strangers: list[tuple[str, Note]]) -> Iterator[tuple[str, bytes, datetime]]:
    """Yields (name within the folder, content, time) of every file, those in archives too."""
    count = 0
    for path in _paths(folder, strangers):
        name = _shown(os.fsencode(path.relative_to(folder).as_posix()))
        if any(_IGNORED.fullmatch(part) for part in name.split("/")):
            continue
        if path.is_symlink() or not path.is_file():
            strangers.append((name, note("link")))
            continue
        count += 1
        if count > _MOST_FILES:
            strangers.append((name, note("too-many")))
            return
        try:
            when = datetime.fromtimestamp(path.stat().st_mtime).astimezone()
            with open(path, "rb") as stream:
                if path.suffix.lower() == ".zip":
                    for member, content, time in _members(stream, name, strangers, Counter()):
                        yield member, content, time or when
                else:
                    yield name, stream.read(MOST_BYTES + 1), when
        except (OSError, ValueError, OverflowError) as error:
            strangers.append((name, note("unreadable", why=_why(error))))


def _why(error: Exception) -> str:
    return harmless(reason(error) if isinstance(error, OSError) else str(error))


def _shown(name: bytes) -> str:
    """A file's name as it can be read and printed: in UTF-8, else in GBK, as systems in China write it."""
    try:
        return harmless(name.decode("utf-8"))
    except UnicodeDecodeError:
        return harmless(name.decode("gb18030", "replace"))


def _paths(folder: Path, strangers: list[tuple[str, Note]]) -> list[Path]:
    """Lists everything in ``folder`` that is no folder itself, with links to folders, which are not followed."""

    def unread(error: OSError) -> None:
        name = os.path.relpath(error.filename, folder)
        strangers.append((_shown(os.fsencode(name)), note("unreadable", why=_why(error))))

    found = []
    for above, inner, files in os.walk(folder, onerror=unread):
        found += [Path(above, name) for name in files]
        found += [path for name in inner if (path := Path(above, name)).is_symlink()]
    return sorted(found)


def _members(
    stream: IO[bytes],
    name: str,
    strangers: list[tuple[str, Note]],
    taken: Counter[str],
    top: str = "",
    deep: int = 1,
) -> Iterator[tuple[str, bytes, datetime | None]]:
    """Yields (name, content, time) of every file in an archive called ``name``, and in those within it.

    taken   the bytes that each top folder, or file beside them, has had by now.
    top     the folder of the outer archive in which this one lies, "" for that itself.
    """
    try:
        with zipfile.ZipFile(stream) as archive:
            entries = [entry for entry in archive.infolist() if not entry.is_dir()]
            for entry in entries[:_MOST_FILES]:
                told = entry.filename.encode("utf-8", "surrogatepass")
                if not entry.flag_bits & 0x800:  # no UTF-8, which the format reads as cp437
                    with suppress(UnicodeError):
                        told = entry.filename.encode("cp437")
                inner = f"{name}/{_shown(told)}"
                if any(_IGNORED.fullmatch(part) for part in inner.split("/")):
                    continue
                whose = top or inner.removeprefix(name + "/").split("/")[0]
                packed = inner.lower().endswith(".zip")
                room = min(_MOST_IN_FOLDER - taken[whose], _MOST_IN_ARCHIVE - taken.total())
                with archive.open(entry) as member:
                    content = member.read(min(_MOST_IN_FOLDER if packed else MOST_BYTES, max(room, 0)) + 1)
                taken[whose] += len(content)
                if len(content) > room:
                    strangers.append((inner, note("too-many")))
                    continue
                if packed and deep < _MOST_DEEP:
                    yield from _members(io.BytesIO(content), inner, strangers, taken, whose, deep + 1)
                    continue
                time = None
                with suppress(ValueError, OverflowError, OSError):
                    time = datetime(*entry.date_time).astimezone()
                yield inner, content, time
    except (zipfile.BadZipFile, zlib.error, RuntimeError, NotImplementedError, EOFError) as error:
        strangers.append((name, note("unreadable", why=_why(error))))
