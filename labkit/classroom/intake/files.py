"""The files that came back, those in archives too.

Links are not followed; archives are read to one level within limits.
"""

from __future__ import annotations

import os
import re
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from ...base.files import reason
from ..words import Note
from .document import MOST_BYTES
from .notes import note

_MOST_FILES = 20_000
_MOST_IN_ARCHIVES = 500_000_000  # bytes
# What systems and tools leave in folders, and what is no submission of anything.
_IGNORED = re.compile(
    r"(\.(?!\.$).*|__MACOSX|Thumbs\.db|desktop\.ini|__pycache__|README(\..*)?)", re.IGNORECASE
)


def files_in(folder: Path, strangers: list[tuple[str, Note]]) -> Iterator[tuple[str, bytes, datetime]]:
    """Yields (name within the folder, content, time) of every file, those in archives too."""
    count, unpacked = 0, 0
    for path in _paths(folder):
        name = path.relative_to(folder).as_posix()
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
            if path.suffix.lower() == ".zip":
                for member, content, time in _members(path, name, strangers, _MOST_IN_ARCHIVES - unpacked):
                    unpacked += len(content)
                    yield member, content, time or when
                continue
            with open(path, "rb") as stream:
                yield name, stream.read(MOST_BYTES + 1), when
        except (OSError, ValueError, OverflowError) as error:
            why = reason(error) if isinstance(error, OSError) else str(error)
            strangers.append((name, note("unreadable", why=why)))


def _paths(folder: Path) -> list[Path]:
    """Lists everything in ``folder`` that is no folder itself, with links to folders, which are not followed."""
    found = []
    for above, inner, files in os.walk(folder):
        found += [Path(above, name) for name in files]
        found += [path for name in inner if (path := Path(above, name)).is_symlink()]
    return sorted(found)


def _members(
    path: Path, name: str, strangers: list[tuple[str, Note]], room: int
) -> Iterator[tuple[str, bytes, datetime | None]]:
    try:
        with zipfile.ZipFile(path) as archive:
            entries = [entry for entry in archive.infolist() if not entry.is_dir()]
            for entry in entries[:_MOST_FILES]:
                told = entry.filename
                if not entry.flag_bits & 0x800:  # a name in GBK, from China, which the format reads as cp437
                    with suppress(UnicodeError):
                        told = told.encode("cp437").decode("gb18030")
                inner = f"{name}/{told}"
                if any(_IGNORED.fullmatch(part) for part in inner.split("/")):
                    continue
                with archive.open(entry) as stream:
                    content = stream.read(min(MOST_BYTES, room) + 1)
                room -= len(content)
                if room < 0:
                    strangers.append((inner, note("too-many")))
                    return
                time = None
                with suppress(ValueError, OverflowError, OSError):
                    time = datetime(*entry.date_time).astimezone()
                yield inner, content, time
    except (zipfile.BadZipFile, zlib.error, RuntimeError, NotImplementedError, EOFError) as error:
        strangers.append((name, note("unreadable", why=error)))
