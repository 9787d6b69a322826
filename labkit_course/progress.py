"""Save answered exercises, and those right at the first try, in the learner's JSON file.

The file is ``~/.labkit/progress.json``, or the path in the variable ``LABKIT_PROGRESS`` ("off": no file). One
process at a time writes the whole file atomically and keeps unknown entries. An unreadable file is moved aside, never
overwritten. A failed write is repeated with the next note, or when the board is shown, and never raises an error in
the learner's cell.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any
from weakref import WeakSet

from labkit.base.files import real_file, reason, write_whole
from labkit.base.language import say, wrong

_PATIENCE = 5  # seconds to wait while another process writes

# Objects whose ``refresh()`` is called after each note (see .board).
watchers: WeakSet[Any] = WeakSet()

# The lists in the file: answered exercises, exercises with a wrong first answer, and the repairs' scores and hints (see
# labkit_content/repairs/score.py). Entries are never removed.
DONE, MISSED, REACHED, HINTED = LISTS = "done", "missed", "reached", "hinted"
# Pending notes of the process, not yet in the file: (list, entry).
_unwritten: set[tuple[str, str]] = set()
# The last error, and the new path of an unreadable file.
_error: Exception | None = None
_aside: Path | None = None


def file() -> Path | None:
    """Return the progress file, or None if progress is off. Raises OSError without a home folder."""
    named = os.environ.get("LABKIT_PROGRESS")
    if named == "off":
        return None
    try:
        return Path(named).expanduser() if named else Path.home() / ".labkit" / "progress.json"
    except RuntimeError:  # no HOME, and an unknown user
        raise wrong(
            OSError,
            en="the home folder is unknown: name a file in LABKIT_PROGRESS",
            zh="不知道主目录在哪里：请用 LABKIT_PROGRESS 指定一个文件",
        ) from None


def answered_exercises() -> set[str]:
    """Return the ids of exercises answered rightly; an empty set if the file is missing or unreadable."""
    return entries(DONE)


def at_first_try() -> set[str]:
    """Return the ids of exercises whose first answer was right."""
    return entries(DONE) - entries(MISSED)


def note(exercise: str, right: bool = True) -> None:
    """Save an answer to ``exercise``, a wrong one only before the first right one. Never raises an error."""
    if right or exercise not in answered_exercises():
        add(DONE if right else MISSED, exercise)


def add(name: str, entry: str) -> None:
    """Add ``entry`` to the list ``name`` in the file. Never raises an error."""
    if is_on():
        _unwritten.add((name, entry))
    write()
    refresh_watchers()


def is_on() -> bool:
    """Return whether LABKIT_PROGRESS is not "off"."""
    return os.environ.get("LABKIT_PROGRESS") != "off"


def refresh_watchers() -> None:
    """Refresh all watchers."""
    for watcher in list(watchers):
        with suppress(Exception):  # the widget's page may be closed
            watcher.refresh()


def write() -> None:
    """Write pending notes to the file; :func:`trouble` describes an error."""
    global _error, _aside
    if not _unwritten:
        return
    try:
        path, noted = file(), set(_unwritten)
        if path is not None:
            _aside = _write_notes(real_file(path), noted) or _aside
        _unwritten.difference_update(noted)  # not clear(): another thread may have added notes
    except Exception as error:  # a file error must not fail the learner's cell
        _error = error.with_traceback(None)


def trouble() -> str:
    """Return a sentence about a failure to save progress, or ""."""
    if _unwritten and _error:
        why = reason(_error) if isinstance(_error, OSError) else f"{type(_error).__name__}: {_error}"
        return say(en=f"Progress could not be saved ({why}).", zh=f"进度没能保存（{why}）。")
    if _aside is not None and _aside.exists():
        return say(
            en=f"The progress file could not be understood; it is kept as {_aside.name}.",
            zh=f"进度文件无法识别，已另存为 {_aside.name}。",
        )
    return ""


def entries(name: str) -> set[str]:
    """Return the entries of the list ``name``, from the file if readable, and from pending notes."""
    unwritten = {entry for listed, entry in _unwritten if listed == name}
    try:
        path = file()
        return unwritten | _read_entries(_load(real_file(path)), name) if path else set()
    except (OSError, _NotOurs):
        return unwritten


def _write_notes(path: Path, noted: set[tuple[str, str]]) -> Path | None:
    """Write the notes; return the new path of an unreadable file, if there was one."""
    from filelock import FileLock  # late: imported for the first answer

    path.parent.mkdir(parents=True, exist_ok=True)
    # Hold the lock from reading to writing: other notebooks write to the same file.
    with FileLock(path.with_name(f".{path.name}.lock"), timeout=_PATIENCE):
        try:
            aside, text = None, _merge_notes(_load(path), noted)
        except _NotOurs:
            aside, text = _set_aside(path), _merge_notes({}, noted)
        if text:
            write_whole(path, text)
    return aside


def _merge_notes(known: dict[str, object], noted: set[tuple[str, str]]) -> str:
    """Return the file's new text, or "" if nothing changes."""
    known_entries = {(name, exercise) for name in LISTS for exercise in _read_entries(known, name)}
    if noted <= known_entries:
        return ""
    for name in {listed for listed, _ in noted}:
        known[name] = sorted(entry for listed, entry in known_entries | noted if listed == name)
    try:
        text = json.dumps(known, indent=1, ensure_ascii=False)
    except RecursionError as error:  # json's writer allows less nesting than its reader
        raise _NotOurs from error
    try:
        text.encode()
    except UnicodeEncodeError:  # a lone surrogate, which only an escape can express
        text = json.dumps(known, indent=1)
    return text


class _NotOurs(Exception):
    """Raised for a file without progress."""


def _load(path: Path) -> dict[str, object]:
    """Return the contents of the file, or {} if it is missing."""
    try:
        found = json.loads(path.read_text("utf-8-sig"))  # an editor may have added a byte order mark
    except FileNotFoundError:
        return {}
    except (ValueError, RecursionError) as error:
        raise _NotOurs from error
    if not isinstance(found, dict):
        raise _NotOurs
    return found


def _read_entries(found: dict[str, object], name: str) -> set[str]:
    listed = found.get(name, [])
    if not isinstance(listed, list) or not all(isinstance(entry, str) for entry in listed):
        raise _NotOurs
    return set(listed)


def _set_aside(path: Path) -> Path:
    """Move an unreadable file to a free name beside it, and return the new path."""
    count = 1
    while (free := path.with_name(f"{path.stem}.unreadable-{count}{path.suffix}")).exists():
        count += 1
    path.replace(free)
    return free
